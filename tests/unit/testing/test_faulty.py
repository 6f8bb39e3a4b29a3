"""The conformance suite catches every producer that is wrong on purpose, and nothing else."""

from __future__ import annotations

import pytest

from headrace.testing.conformance import ProducerConformance
from headrace.testing.faulty import FAULTS
from headrace.testing.memory import MemoryProducer

from .test_memory import MemoryHarness

SCENARIOS = sorted(name for name in dir(ProducerConformance) if name.startswith("test_"))


def caught_by(producer: type[MemoryProducer], names: list[str]) -> list[str]:
    """The scenarios that fail for this producer."""
    caught = []
    for name in names:
        try:
            getattr(ProducerConformance(), name)(MemoryHarness(producer))
        except (Exception, pytest.fail.Exception):  # whatever a bug brings about: an assertion, a deadlock, an error of its own
            caught.append(name)
        except pytest.skip.Exception as skipped:
            raise AssertionError(f"{name} was skipped: {skipped}") from None
    return caught


@pytest.mark.parametrize(("producer", "name"), FAULTS.items(), ids=[producer.__name__ for producer in FAULTS])
def test_each_fault_is_caught(producer: type[MemoryProducer], name: str) -> None:
    """The scenario that is about this bug fails."""
    assert caught_by(producer, [name]) == [name]


def test_the_right_producer_passes() -> None:
    """No scenario fails without a bug."""
    assert caught_by(MemoryProducer, SCENARIOS) == []


def test_every_scenario_catches_something() -> None:
    """No scenario of the suite is there in vain."""
    assert set(FAULTS.values()) == set(SCENARIOS)
