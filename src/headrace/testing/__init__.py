"""What those who write producers and triggers test with; public, like the rest of Headrace.

- `virtual_time`: an asyncio loop on which hours pass in milliseconds and a deadlock raises.
- `conformance`: the suite that every producer passes; subclass it with a harness for your broker.
- `memory`: a small broker in memory and its producer, which the suite and the engine's tests use.
- `faulty`: producers with one bug each, to see that the suite catches it.
- `brokers`: starts real brokers, where the machine has them.

Import from the modules: this package imports nothing, so that `virtual_time` needs no pytest.
"""
