"""Notices a consumer that is stuck without an error: its partition has messages, and it delivers none.

A client may miss that a broker came back (a connection that looks alive, metadata that is not renewed), and then waits for
ever. Pure: it is shown positions and ends now and then, and says which partitions are stuck.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aiokafka import TopicPartition


class Sight(NamedTuple):
    """What was seen of a partition: how much it ever delivered, and whether it is being read and is behind its end."""

    delivered: int
    is_waiting: bool


class Watchdog:
    """Remembers since when each partition has waited without getting anything."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: dict[TopicPartition, tuple[int, float]] = {}

    def look(self, now: float, seen: Mapping[TopicPartition, Sight]) -> list[TopicPartition]:
        """The partitions that have waited for longer than the patience. Those not shown are forgotten."""
        waiting: dict[TopicPartition, tuple[int, float]] = {}
        for key, sight in seen.items():
            if sight.is_waiting:
                delivered, since = self._waiting.get(key, (sight.delivered, now))
                waiting[key] = (sight.delivered, since if delivered == sight.delivered else now)
        self._waiting = waiting
        return [key for key, (_, since) in waiting.items() if now - since > self._patience]
