"""Any history of a stream's bookkeeping keeps the rules: a state machine against a naive model that forgets nothing."""

from tests.model.ledger_machine import LedgerMachine

TestLedger = LedgerMachine.TestCase
TestLedger.__doc__ = __doc__
