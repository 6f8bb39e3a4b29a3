"""Whether the consumer reads: positions against ends, for the lag and for a watchdog.

A client may miss that a broker came back (a connection that looks alive, metadata that is not renewed), and then waits for
ever, without an error. `Watchdog` is pure: it is shown now and then how much each partition ever delivered, and says which
of them wait for what is there. `Health` shows it, and has a consumer that is stuck rebuilt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

log = logging.getLogger(__name__)


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


class Health:
    """Looks at the ends every sixth of `patience` seconds. `run` is its task.

    `ends` asks the broker, `see` compares what it said with the lanes, `joining` says for how many seconds the group has given no
    partitions, `rebuild` puts a new consumer in the old one's place and says whether it could.
    """

    def __init__(
        self,
        name: str,
        patience: float,
        *,
        ends: Callable[[], Awaitable[Mapping[TopicPartition, int]]],
        see: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, Sight]],
        joining: Callable[[], float],
        rebuild: Callable[[], Awaitable[bool]],
    ) -> None:
        self._name = name
        self._patience = patience
        self._read_ends = ends
        self._see = see
        self._joining = joining
        self._rebuild = rebuild
        self.ends: Mapping[TopicPartition, int] = {}
        """Where each partition ended at the last look."""
        self.trouble: str | None = None
        """What is wrong now, in a sentence."""
        self.rebuilds = 0

    async def run(self) -> None:
        """Watch for ever."""
        loop = asyncio.get_running_loop()
        watchdog, answered = Watchdog(self._patience), loop.time()
        while True:
            await asyncio.sleep(self._patience / 6)
            stuck: Iterable[TopicPartition] = ()
            try:
                async with asyncio.timeout(self._patience / 2):
                    self.ends = await self._read_ends()
            except (KafkaError, TimeoutError) as error:
                self.trouble = f"the brokers do not answer: {error or type(error).__name__}"
            else:
                answered = loop.time()
                stuck = watchdog.look(answered, self._see(self.ends))
                names = ", ".join(f"{key.topic}/{key.partition}" for key in stuck)
                self.trouble = f"there are messages in {names}, and none come" if stuck else None
                if not stuck and self._joining() > self._patience:
                    self.trouble = f"{self._name} has given this member no partitions for {self._joining():.0f} s"
            if stuck or loop.time() - answered > self._patience:
                log.error("%s: %s; connecting anew", self._name, self.trouble)
                if await self._rebuild():
                    self.rebuilds += 1
                    watchdog, answered = Watchdog(self._patience), loop.time()
