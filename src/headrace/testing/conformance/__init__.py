"""The contract of a producer, as tests. Subclass `ProducerConformance` and give it a `Harness` for your broker:

```python
class TestMyProducer(ProducerConformance):
    @pytest.fixture
    def harness(self, tmp_path):
        return MyHarness(tmp_path)
```

The suite drives the producer directly, without the engine, by `open_batches`, `advance`, `pause`, `resume` and `aclose`. What
the producer's `capabilities` do not claim, and what the harness cannot do, is skipped with its reason. Needs pytest, no plugin.
"""

from __future__ import annotations

import pytest

_MODULES = ("harness", "scenario", "opening", "verdicts", "lanes", "trouble", "ending")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))  # so that a failure shows the values

from headrace.testing.conformance.ending import Ending  # noqa: E402
from headrace.testing.conformance.harness import (  # noqa: E402
    ACKED,
    FAILED,
    NOBODY,
    REJECTED,
    DeadLetter,
    Event,
    Harness,
    Reader,
)
from headrace.testing.conformance.lanes import OrderedLanes  # noqa: E402
from headrace.testing.conformance.opening import Opening  # noqa: E402
from headrace.testing.conformance.scenario import message, messages  # noqa: E402
from headrace.testing.conformance.trouble import Trouble  # noqa: E402
from headrace.testing.conformance.verdicts import Verdicts  # noqa: E402

__all__ = [
    "ACKED",
    "FAILED",
    "NOBODY",
    "REJECTED",
    "DeadLetter",
    "Event",
    "Harness",
    "ProducerConformance",
    "Reader",
    "message",
    "messages",
]


class ProducerConformance(Opening, Verdicts, OrderedLanes, Trouble, Ending):
    """Subclass this and define the fixture `harness`; override a scenario only to skip it, with the reason."""
