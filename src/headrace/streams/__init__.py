"""The engine: shared streams, their subscribers, and the ledger that decides when the broker is told."""
