"""One stream as the runner keeps it: its manager, its producer in a thread, its restarts.

A stream that ends is opened again when its first trigger subscribes again; all its triggers wait for the same moment, so that the
new stream has its cohort together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from headrace.connector import Message
from headrace.errors import SourceMisconfigured
from headrace.runner.backoff import Backoff
from headrace.runner.hosting import HostedProducer
from headrace.runner.identity import ask_identity
from headrace.runner.observer import Observer
from headrace.runner.submitter import Submitter, as_message, lane_name
from headrace.store import DeadLetter, Unit
from headrace.streams.batch import EventBatch, event_id
from headrace.streams.contract import AdvanceItem, SharedStreamProducer
from headrace.streams.manager import SharedStreamManager
from headrace.streams.stream import Stream, StreamSettings, Unacknowledged
from headrace.triggers.base import BaseEventTrigger

log = logging.getLogger(__name__)

AS_THE_PRODUCER_SAYS: Final = 2**31
"""`max_parallel_advances` of the manager: it takes the smaller of this and the producer's."""

MakeProducer = Callable[[BaseEventTrigger], Callable[[], SharedStreamProducer]]
"""From a stream's first subscriber to the factory of its producer."""


class Source:
    """`expected` says who belongs to the stream now. Streams of the config know their producer; others learn it of a trigger."""

    def __init__(
        self,
        name: str,
        key: Hashable,
        *,
        make_producer: MakeProducer,
        acknowledge: bool,
        settings: StreamSettings,
        expected: Callable[[Source], Collection[str]],
        submitter: Submitter,
        observer: Observer,
        host: Callable[..., HostedProducer] = HostedProducer,
    ) -> None:
        self.name = name
        self.key = key
        self._host = host
        self.producer: HostedProducer | None = None
        """That of the stream opened last."""
        self.last_error: BaseException | None = None
        self.patience = settings.advance_timeout + settings.close_timeout
        """Seconds that stopping it may take."""
        self.stats: Mapping[str, Any] = {}
        self._make_producer = make_producer
        self._acknowledge = acknowledge
        self._expected = expected
        self._submitter = submitter
        self._observer = observer
        self._clock = asyncio.get_running_loop().time
        self._backoff = Backoff(0.5, 30.0, clock=self._clock)
        self._slow_backoff = Backoff(10.0, 300.0, calm=3600.0, clock=self._clock)
        self._opens_at = 0.0
        self.manager = SharedStreamManager(
            max_subscriber_queue=settings.subscriber_queue_size,
            ack_timeout=settings.ack_timeout,
            queue_timeout=settings.queue_timeout,
            cohort_grace_period=settings.cohort_grace_period,
            overflow_grace=settings.overflow_grace,
            max_in_flight=settings.max_in_flight,
            max_in_flight_bytes=settings.max_in_flight_bytes,
            max_parallel_advances=AS_THE_PRODUCER_SAYS,
            advance_timeout=settings.advance_timeout,
            advance_retries=settings.advance_retries,
            close_timeout=settings.close_timeout,
            observer=observer,
        )
        submitter.attach(self.manager)

    @property
    def stream(self) -> Stream | None:
        """The engine's stream, while it is alive."""
        return self.manager.stream(self.key)

    @property
    def expected(self) -> Collection[str]:
        """Who belongs to the stream now."""
        return self._expected(self)

    def subscribe(self, trigger: BaseEventTrigger, trigger_id: str, on_failed: Callable[[Exception], None]) -> AsyncIterator[Any]:
        """Join, or open the stream. Raises what the trigger's `serialize` and `shared_stream_match` raise."""
        watcher = Acknowledged if self._acknowledge else NotAcknowledged
        watching: Any = watcher(trigger, self._open(trigger))  # each has the one factory that its mode calls
        mine = ask_identity.set(lambda: {"stream": self.name})  # a stream's tasks are not its first subscriber's
        try:
            return self.manager.subscribe(
                trigger_id=trigger_id,
                trigger=watching,
                key=self.key,
                expected=self.expected,
                on_failed=on_failed,
            )
        finally:
            ask_identity.reset(mine)

    def _open(self, trigger: BaseEventTrigger) -> Callable[[], HostedProducer]:
        make = self._make_producer(trigger)

        def host() -> HostedProducer:
            self.producer = self._host(make, name=self.name, before_settle=self._record_rejections)
            return self.producer

        return host

    async def refresh_stats(self, timeout: float) -> None:
        """Ask the live stream's producer what it tells of itself; `stats` has it from then on."""
        if self.producer is None or self.stream is None:
            self.stats = {}
            return
        try:
            async with asyncio.timeout(timeout):
                self.stats = dict(await self.producer.stats())
        except Exception as error:
            log.info("stream %s: its producer's stats are not known now: %r", self.name, error)

    async def turn(self, error: BaseException) -> None:
        """Wait until the stream may be opened again after it ended with this error: the same moment for all its triggers."""
        if error is not self.last_error:
            self.last_error = error
            backoff = self._slow_backoff if isinstance(error, SourceMisconfigured) else self._backoff
            self._opens_at = self._clock() + backoff.next()
            self._observer.on_stream_restart(self.name, error)
        await asyncio.sleep(max(0.0, self._opens_at - self._clock()))

    async def stop(self, timeout: float) -> None:
        """End the stream: what is resolved is advanced, the producer is closed, within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self.manager.stop_all()
        except TimeoutError:
            log.error("stream %s: not closed within %.1f s", self.name, timeout)
        finally:
            self._submitter.detach(self.manager)

    async def _record_rejections(self, items: Sequence[AdvanceItem]) -> None:
        """Store a dead letter for each trigger that rejected, and wait for it: only then does the broker hear of it."""
        await self._submitter.store(
            [
                Unit(
                    str(rejection.trigger_id),
                    self.name,
                    carried.event_id or event_id(carried.raw),
                    lane=lane_name(carried.lane),
                    published_at=carried.raw.timestamp if isinstance(carried.raw, Message) else None,
                    dead=DeadLetter(
                        "rejected",
                        rejection.reason or "rejected without a reason",
                        attempts=rejection.attempt,
                        message=as_message(carried.raw, carried.event_id, self.name),
                    ),
                )
                for carried, outcome in items
                for rejection in outcome.rejections
            ]
        )


class Watcher:
    """A trigger as the engine sees it: what it matches, and how its stream is opened."""

    def __init__(self, trigger: BaseEventTrigger, open: Callable[[], HostedProducer]) -> None:
        self._trigger = trigger
        self._open = open

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return type(self._trigger).__qualname__, {"open": self._open}

    def shared_stream_match(self) -> Mapping[str, Collection[Any]] | None:
        return self._trigger.shared_stream_match()


class Acknowledged(Watcher):
    """The broker is told what became of each event."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        producer: SharedStreamProducer = kwargs["open"]()
        return producer


class NotAcknowledged(Watcher):
    """The raw events of a producer that is never told anything."""

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        producer: HostedProducer = kwargs["open"]()
        try:
            async with aclosing(producer.open_batches()) as batches:
                async for batch in batches:
                    if isinstance(batch, EventBatch):
                        for raw in batch.raws:
                            yield raw
        finally:
            await producer.aclose()


def of_config(create_producer: Callable[[], SharedStreamProducer]) -> MakeProducer:
    """The producer of a stream of the config: the connector's, whoever subscribes first."""
    return lambda trigger: create_producer


def of_trigger(trigger: BaseEventTrigger) -> Callable[[], SharedStreamProducer]:
    """The producer that a trigger's class brings, built of its serialized arguments."""
    kind = type(trigger)
    _, kwargs = trigger.serialize()
    if acknowledges(kind):
        return lambda: kind.create_shared_stream_producer(kwargs)
    return lambda: Unacknowledged(lambda: kind.open_shared_stream(kwargs))


def acknowledges(kind: type[BaseEventTrigger]) -> bool:
    """Whether a trigger class brings a producer of its own: ack mode."""
    return not getattr(kind.create_shared_stream_producer, "is_default", False)
