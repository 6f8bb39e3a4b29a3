"""Rejected messages on a topic of their own: the original bytes, key and headers, and where, why and when.

A dead letter goes to whatever partition its key belongs to in the dead-letter topic. It is remembered once the broker has it,
so that a commit that failed afterwards, or an `advance` that was cut short, sends none twice from this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from headrace import AdvanceOutcome, HeadraceError, SourceUnavailable
from headrace_kafka.client import Header, send, stop
from headrace_kafka.message import KafkaMessage

log = logging.getLogger(__name__)

STOP_SECONDS: Final = 3.0
"""How long disconnecting may take."""
REMEMBERED: Final = 10_000
"""Dead letters that are known to be sent: far more than one commit can leave open."""


def origin_headers(message: KafkaMessage, outcome: AdvanceOutcome, now: datetime) -> list[Header]:
    """Where a dead letter comes from, and when it was made; then for each trigger that rejected it: which, why, which attempt."""
    headers: list[Header] = [
        ("headrace-topic", message.source.encode()),
        ("headrace-partition", b"%d" % message.partition),
        ("headrace-offset", b"%d" % message.offset),
        ("headrace-timestamp", b"%d" % message.timestamp_ms),
        ("headrace-time", now.isoformat(timespec="milliseconds").encode()),
    ]
    for rejection in outcome.rejections:
        headers.append(("headrace-trigger", str(rejection.trigger_id).encode()))
        headers.append(("headrace-reason", (rejection.reason or "").encode()))
        headers.append(("headrace-attempts", b"%d" % rejection.attempt))
    return headers


def _seen(task: asyncio.Task[None]) -> None:
    """Whoever waited for it may be gone."""
    if not task.cancelled():
        task.exception()


class DeadLetters:
    """Sends dead letters to a topic. `start` builds a started producer with `acks=all` and idempotence."""

    def __init__(
        self,
        topic: str,
        start: Callable[[], Any],
        *,
        patience: float,
        explain: Callable[[BaseException], HeadraceError],
    ) -> None:
        self.topic = topic
        self._start = start
        self._patience = patience
        self._explain = explain
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._sent: dict[str, None] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.count = 0

    async def open(self) -> None:
        """Connect. Raises `SourceUnavailable` or `SourceMisconfigured`."""
        await self._started()

    async def send(self, letters: Sequence[tuple[KafkaMessage, AdvanceOutcome]]) -> None:
        """Return when the broker has acknowledged all of them.

        Raises `SourceUnavailable` when it takes longer than the patience, and what a refusal means; calling it again with the
        same messages goes on where it was. Cancelling it stops no dead letter that is on its way.
        """
        waiting: set[asyncio.Task[None]] = set()
        for message, outcome in letters:
            if message.id in self._sent:
                continue
            task = self._sending.get(message.id)
            if task is None:
                task = self._sending[message.id] = asyncio.create_task(self._deliver(message, outcome))
                task.add_done_callback(_seen)
            waiting.add(task)
        if not waiting:
            return
        done, pending = await asyncio.wait(waiting, timeout=self._patience, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if (error := task.exception()) is not None:
                raise self._explain(error) from error
        if pending:
            raise SourceUnavailable(f"the dead-letter topic {self.topic!r} acknowledged nothing within {self._patience:g} s")

    async def _deliver(self, message: KafkaMessage, outcome: AdvanceOutcome) -> None:
        headers = [*message.headers, *origin_headers(message, outcome, datetime.now(UTC))]
        try:
            producer = await self._started()
            try:
                await (await send(producer, self.topic, message, headers))
            except KafkaError:
                self._discard(producer)
                raise
            self._remember(message.id)
        finally:
            del self._sending[message.id]

    async def _started(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                self._producer = await self._start()
            return self._producer

    def _discard(self, producer: AIOKafkaProducer) -> None:
        # After a refused batch the sequence numbers of an idempotent producer have a gap, and every later batch is refused.
        if producer is self._producer:
            self._producer = None
            closing = asyncio.create_task(self._stop(producer))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _stop(self, producer: AIOKafkaProducer) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await stop(producer)
        except TimeoutError:
            log.warning("the producer of the dead-letter topic %s did not close in time", self.topic)

    def _remember(self, message_id: str) -> None:
        self.count += 1
        self._sent[message_id] = None
        if len(self._sent) > REMEMBERED:
            del self._sent[next(iter(self._sent))]

    async def aclose(self) -> None:
        """Give up what is on its way, and disconnect. What was not acknowledged was not committed: it will come again."""
        tasks = [*self._sending.values(), *self._closing]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._stop(producer)
