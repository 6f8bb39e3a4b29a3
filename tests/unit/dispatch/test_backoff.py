"""How long a failed delivery waits."""

from __future__ import annotations

import random

import pytest

from headrace.dispatch.backoff import Backoff
from headrace.dispatch.targets import TargetConfig


def test_delays_double_up_to_the_longest_with_jitter() -> None:
    """Each delay is within a quarter of its nominal one, they are spread, and no attempt number overflows."""
    backoff = Backoff(first=2.0, longest=100.0, rng=random.Random(1))
    for attempt, nominal in [(1, 2), (2, 4), (3, 8), (6, 64), (7, 100), (20, 100), (5000, 100)]:
        delays = [backoff.delay(attempt) for _ in range(200)]
        assert min(delays) >= 0.75 * nominal
        assert max(delays) <= 1.25 * nominal
        assert max(delays) - min(delays) > 0.3 * nominal


@pytest.mark.parametrize(("retry_after", "least", "most"), [(0.0, 0.75, 1.25), (30.0, 30.0, 30.0), (1e9, 100.0, 100.0)])
def test_retry_after_is_a_minimum_with_a_cap(retry_after: float, least: float, most: float) -> None:
    """A target can ask for a longer wait, up to the longest, and never for a hot loop."""
    assert least <= Backoff(first=1.0, longest=100.0).delay(1, retry_after) <= most


def test_the_defaults_bear_an_outage_of_a_night() -> None:
    """The default attempts take at least seven hours to be used up, jitter at its lowest included seldom as that is."""
    attempts = TargetConfig().max_attempts
    backoff = Backoff(rng=random.Random(1))
    assert sum(backoff.delay(attempt) for attempt in range(1, attempts)) >= 7 * 3600
