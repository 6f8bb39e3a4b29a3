"""How long to wait before trying again: longer each time, jittered, and short again after a calm while."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays of `first * 2**n` seconds, at most `last`, each taken between half of itself and itself.

    `clock` is in seconds. After `calm` seconds without a failure the next delay is the first again.
    """

    __slots__ = ("_calm", "_clock", "_failures", "_first", "_last", "_until")

    def __init__(self, first: float, last: float, *, calm: float = 60.0, clock: Callable[[], float]) -> None:
        self._first = first
        self._last = last
        self._calm = calm
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        now = self._clock()
        if now - self._until > self._calm:
            self._failures = 0
        delay = jittered(self._first, self._last, self._failures)
        self._failures += 1
        self._until = now + delay
        return delay


def jittered(first: float, last: float, failures: int) -> float:
    """The delay after `failures` earlier ones."""
    return min(last, first * 2.0 ** min(failures, 32)) * random.uniform(0.5, 1.0)
