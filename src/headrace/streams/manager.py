"""The subscribers' half of the contract: who watches what, and what became of it.

`SharedStreamManager` keeps one `Stream` per key, and its one invariant: a key is registered only while its stream is alive and
takes subscribers. Everything that removes a key does so before anything is awaited. For one event loop, not thread-safe.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable
from typing import Any

from headrace.streams.contract import (
    DEFAULT_ACK_TIMEOUT,
    DEFAULT_SUBSCRIBER_QUEUE_MAX,
    EventInHand,
    SharedStreamProducer,
    SharedStreamTrigger,
)
from headrace.streams.pump import StreamObserver
from headrace.streams.stream import Stream, StreamSettings, Unacknowledged


class SharedStreamManager:
    """Fans shared streams out to triggers and advances their brokers. Durations in seconds, sizes in bytes.

    `max_subscriber_queue`: events a subscriber may have unpulled. `ack_timeout`: from a subscriber's pull of an event to having
    moved past it with all it derived stored. `queue_timeout`: how long a subscriber may pull nothing while events wait, by
    default `ack_timeout`. `cohort_grace_period`: how long polling waits for subscribers. `overflow_grace`: how long, in any
    60 s, a full subscriber may keep its stream waiting. `max_in_flight`, `max_in_flight_bytes`: events read and not settled, per
    stream. `max_parallel_advances`: `advance` calls at once over all lanes, at most what the producer allows.
    `advance_timeout`, `advance_retries`, `close_timeout`: for calls into the producer. `observer` is told what happens.
    """

    def __init__(
        self,
        *,
        log: logging.Logger | None = None,
        max_subscriber_queue: int = DEFAULT_SUBSCRIBER_QUEUE_MAX,
        ack_timeout: float = DEFAULT_ACK_TIMEOUT,
        cohort_grace_period: float = 0.0,
        queue_timeout: float | None = None,
        overflow_grace: float = 5.0,
        max_in_flight: int = 100_000,
        max_in_flight_bytes: int = 256 * 2**20,
        max_parallel_advances: int = 1,
        advance_timeout: float = 30.0,
        advance_retries: int = 10,
        close_timeout: float = 10.0,
        observer: StreamObserver | None = None,
    ) -> None:
        self._log = log or logging.getLogger(__name__)
        self._observer = observer
        self._settings = StreamSettings(
            subscriber_queue_size=max_subscriber_queue,
            ack_timeout=ack_timeout,
            queue_timeout=queue_timeout,
            cohort_grace_period=cohort_grace_period,
            overflow_grace=overflow_grace,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            max_parallel_advances=max_parallel_advances,
            advance_timeout=advance_timeout,
            advance_retries=advance_retries,
            close_timeout=close_timeout,
        )
        self._streams: dict[Hashable, Stream] = {}
        self._closing: dict[Hashable, Stream] = {}
        self._write_ids = itertools.count(1)
        self._store_available = True

    def subscribe(
        self,
        *,
        trigger_id: Hashable,
        trigger: SharedStreamTrigger,
        key: Hashable,
        expected: Collection[Hashable] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> AsyncIterator[Any]:
        """Join the stream of `key`, which the first subscriber starts; returns the raw events to feed into the trigger's filter.

        `expected`: all who belong to the key; polling waits for them, and what they have not seen counts as failed. The latest
        call's wins. `on_failed` is called at once when this subscription fails or its stream ends; the next pull raises the
        same error. Raises `ValueError` for a key of None, `RuntimeError` if the trigger is subscribed already.
        """
        if key is None:
            raise ValueError("the key of a shared stream must not be None")
        stream = self._streams.get(key)
        if stream is not None:
            return stream.subscribe(trigger_id, self._match(trigger), expected, on_failed)
        match = self._match(trigger)
        gated = _overrides_factory(type(trigger))
        _, kwargs = trigger.serialize()
        stream = self._streams[key] = Stream(
            key,
            _producer_factory(type(trigger), kwargs, gated=gated),
            gated=gated,
            settings=self._settings,
            predecessor=self._closing.get(key),
            on_end=self._evict,
            observer=self._observer,
            log=self._log,
        )
        if not self._store_available:
            stream.store_available(False)
        try:
            return stream.subscribe(trigger_id, match, expected, on_failed)
        except BaseException:
            stream.end(None)
            raise

    @staticmethod
    def _match(trigger: SharedStreamTrigger) -> Any:
        declare = getattr(trigger, "shared_stream_match", None)
        return declare() if declare is not None else None

    def resume(self, *, trigger_id: Hashable, key: Hashable) -> AsyncIterator[Any]:
        """Start over with the event in hand: returns a new iterator that offers it again, and invalidates the older one.

        What was bound to the event is forgotten; its clock runs on. An event that is void, or none, is not offered. Raises
        `KeyError` if the trigger is not subscribed.
        """
        return self._streams[key].resume(trigger_id)

    def event_in_hand(self, *, trigger_id: Hashable, key: Hashable) -> EventInHand | None:
        """The event that the subscriber has pulled and not moved past; None between events, or if it is not subscribed."""
        stream = self._streams.get(key)
        subscriber = stream.subscribers.get(trigger_id) if stream is not None else None
        if stream is None or subscriber is None:
            return None
        return subscriber.cursor.hand(gated=stream.gated)

    def bind_pending_event(self, *, trigger_id: Hashable, key: Hashable, size: int = 0) -> int | None:
        """Let the event in hand wait for a derived event of `size` bytes; returns its write id for `confirm_persisted`.

        Call it after the filter yields, before anything is awaited. None where nothing is gated: unacknowledged mode, nothing
        in hand, or an event that is void.
        """
        stream = self._streams.get(key)
        subscriber = stream.subscribers.get(trigger_id) if stream is not None else None
        if stream is None or subscriber is None or not stream.gated:
            return None
        write_id = next(self._write_ids)
        return write_id if subscriber.cursor.bind(write_id, size) else None

    def confirm_persisted(self, seqs: Iterable[int]) -> None:
        """The derived events behind these write ids are stored. Ids of what is resolved already are ignored."""
        write_ids = list(seqs)
        for stream in self._streams.values():
            stream.ledger.confirm(write_ids)

    def persist_failed(self, seqs: Iterable[int]) -> None:
        """The store refused these: each event fails for its subscriber, at once."""
        write_ids = list(seqs)
        for stream in list(self._streams.values()):
            stream.ledger.refuse(write_ids)

    def store_available(self, available: bool) -> None:
        """Say whether the store answers; while it does not, events that wait only for it do not time out."""
        self._store_available = available
        for stream in self._streams.values():
            stream.store_available(available)

    async def unsubscribe(self, trigger_id: Hashable, key: Hashable, *, abandon: bool = False) -> None:
        """Leave the stream; the last one out ends it, and waits until it is closed.

        The event in hand counts as moved past, with `abandon` as failed; what was not pulled has failed. A plain leave takes
        the name off `expected`, even of a trigger that is not subscribed.
        """
        stream = self._streams.get(key)
        if stream is None:
            return
        stream.unsubscribe(trigger_id, abandon=abandon)
        if not stream.subscribers:
            await self._stop([stream])

    async def stop_all(self) -> None:
        """End every stream and wait until all are closed."""
        await self._stop([*self._streams.values(), *self._closing.values()])

    async def _stop(self, streams: list[Stream]) -> None:
        for stream in streams:
            stream.end(None)
        if streams:
            await asyncio.wait([stream.task for stream in streams])

    def _evict(self, stream: Stream) -> None:
        if self._streams.get(stream.key) is stream:
            del self._streams[stream.key]
        self._closing[stream.key] = stream
        stream.task.add_done_callback(lambda _: self._forget(stream))

    def _forget(self, stream: Stream) -> None:
        if self._closing.get(stream.key) is stream:
            del self._closing[stream.key]

    def stream(self, key: Hashable) -> Stream | None:
        """The live stream of a key, to look at: its state, its subscribers, who is missing, its ledger's bounds."""
        return self._streams.get(key)


def _overrides_factory(kind: type) -> bool:
    """Whether the trigger brings a producer of its own: ack mode."""
    factory = getattr(kind, "create_shared_stream_producer", None)
    return factory is not None and not getattr(factory, "is_default", False)


def _producer_factory(kind: Any, kwargs: dict[str, Any], *, gated: bool) -> Callable[[], SharedStreamProducer]:
    if gated:
        return lambda: kind.create_shared_stream_producer(kwargs)
    return lambda: Unacknowledged(lambda: kind.open_shared_stream(kwargs))
