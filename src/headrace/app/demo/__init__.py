"""The demo: the main job in real processes, killed half-way, and counted by somebody who does not trust it.

`orders` makes the messages and says what must come of each, `filters` are the triggers, `receiver` is the webhook, `sidecar`
is the `serve` that is killed, `brokers` where the orders go, `run` the course of it, `report` the counting.
"""
