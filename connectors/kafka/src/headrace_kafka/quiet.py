"""aiokafka's log, without the same line forty times a second while a broker is away.

Each kind of line passes once in a while, and says how many like it were left out. `stats()["trouble"]` tells the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

NOISY: Final = (
    "aiokafka",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiokafka.producer.sender",
)
"""Loggers that log in loops. A filter is not inherited, so each is named."""
SECONDS: Final = 30.0


class Repeats(logging.Filter):
    """Passes a line when none like it (of this logger, with this text before its values are filled in) passed lately."""

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._passed: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = (record.name, str(record.msg))
        now = self._clock()
        since, left_out = self._passed.get(kind, (float("-inf"), 0))
        if now - since < self._seconds:
            self._passed[kind] = (since, left_out + 1)
            return False
        self._passed[kind] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} ({left_out} more like it since the last)"
            record.args = None
        return True


def quieten() -> None:
    """Put the filter on aiokafka's loggers, once."""
    for name in NOISY:
        logger = logging.getLogger(name)
        if not any(isinstance(known, Repeats) for known in logger.filters):
            logger.addFilter(Repeats())
