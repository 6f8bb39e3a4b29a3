"""One shared stream: a reader that fans poll batches out to the subscribers, under the bounds; a sweep that fails who is late;
a pump that settles. All facts are in the ledger; here is what waits.

A stream goes one way: it waits for its cohort, polls, ends, is closed. `end` is the one way out, for a failing source, a failing
`advance`, and a stop alike: synchronously it leaves the manager's registry and tells every subscriber, so nobody can join a
dead stream; then the pump settles what is resolved, the source is closed, and `closed` is set.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from headrace.errors import AckTimeout, SourceUnavailable, StreamEnded, StreamError, SubscriberOverflow
from headrace.streams.batch import UNKNOWN_SIZE, EventBatch
from headrace.streams.contract import (
    DEFAULT_ACK_TIMEOUT,
    DEFAULT_SUBSCRIBER_QUEUE_MAX,
    UNORDERED,
    AdvanceItem,
    LaneLost,
    SharedStreamProducer,
)
from headrace.streams.cursor import AnyCursor
from headrace.streams.ledger import Ledger
from headrace.streams.pump import Pump, PumpSettings, StreamObserver
from headrace.streams.segment import Lane
from headrace.streams.subscription import Subscription, wake

OVERFLOW_WINDOW = 60.0
"""Seconds over which a subscriber's waiting is added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """The bounds and deadlines of a stream; durations in seconds, sizes in bytes. `design.md` of the manual: rules R5 to R17."""

    subscriber_queue_size: int = DEFAULT_SUBSCRIBER_QUEUE_MAX
    ack_timeout: float = DEFAULT_ACK_TIMEOUT
    queue_timeout: float | None = None
    cohort_grace_period: float = 0.0
    overflow_grace: float = 5.0
    max_in_flight: int = 100_000
    max_in_flight_bytes: int = 256 * 2**20
    max_parallel_advances: int = 1
    advance_timeout: float = 30.0
    advance_retries: int = 10
    close_timeout: float = 10.0


class StreamState(enum.Enum):
    WAITING = "waiting for its cohort"
    POLLING = "polling"
    ENDED = "ended, settling what is resolved"
    CLOSED = "closed"


class Unacknowledged(SharedStreamProducer):
    """A source without a broker to tell: the raw events of `open_shared_stream`."""

    def __init__(self, open_shared_stream: Callable[[], AsyncIterator[Any]]) -> None:
        self._open = open_shared_stream

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        events = self._open()
        try:
            async for raw in events:
                yield raw, None
        finally:
            if (aclose := getattr(events, "aclose", None)) is not None:
                await aclose()

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        return UNORDERED

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """There is nobody to tell."""


class Subscriber:
    """One trigger's place on the stream, and what its slowness has cost."""

    __slots__ = ("charges", "cursor", "on_failed", "subscription")

    def __init__(self, cursor: AnyCursor, subscription: Subscription, on_failed: Callable[[Exception], None] | None) -> None:
        self.cursor = cursor
        self.subscription = subscription
        self.on_failed = on_failed
        self.charges: Sequence[tuple[float, float]] = ()
        """When the stream had waited for it, and for how long."""

    def charge(self, now: float, seconds: float) -> None:
        recent = [charge for charge in self.charges if charge[0] > now - OVERFLOW_WINDOW]
        self.charges = [*recent, (now, seconds)]

    def charged(self, now: float) -> float:
        """Seconds that the stream waited for this subscriber in the last `OVERFLOW_WINDOW`."""
        return sum(seconds for at, seconds in self.charges if at > now - OVERFLOW_WINDOW)


class Stream:
    """See the module. `make_producer` builds the source of this one poll; `predecessor` is the same key's older stream, whose
    source must be closed before this one's opens; `on_end` takes the stream out of the registry."""

    def __init__(
        self,
        key: Hashable,
        make_producer: Callable[[], SharedStreamProducer],
        *,
        gated: bool,
        settings: StreamSettings,
        predecessor: Stream | None,
        on_end: Callable[[Stream], None],
        observer: StreamObserver | None,
        log: logging.Logger,
    ) -> None:
        self.key = key
        self.gated = gated
        self.settings = settings
        self.state = StreamState.WAITING
        self.closed = asyncio.Event()
        self.error: Exception | None = None
        self.subscribers: dict[Hashable, Subscriber] = {}
        self.expected: frozenset[Hashable] | None = None
        self.ledger = Ledger(on_news=self._on_news)
        self._make_producer = make_producer
        self._predecessor = predecessor
        self._on_end = on_end
        self._observer = observer
        self._log = log
        self._producer: SharedStreamProducer | None = None
        self._pump: Pump | None = None
        self._settling: asyncio.Task[None] | None = None
        self._missing: dict[Hashable, float] = {}
        """The expected subscribers that are absent or failed, and until when the reader waits for each."""
        self._over = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_reader_waiting = False
        self._has_turned = True
        self._paused: set[Lane] = set()
        self._is_paused = False
        self._away_since: float | None = None
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run(), name=f"headrace stream {key!r}")

    # -- subscribers

    def subscribe(
        self,
        trigger_id: Hashable,
        match: Any,
        expected: Collection[Hashable] | None,
        on_failed: Callable[[Exception], None] | None,
    ) -> Subscription:
        if trigger_id in self.subscribers:
            raise RuntimeError(f"trigger {trigger_id!r} is already subscribed to the stream {self.key!r}")
        cursor = self.ledger.join(trigger_id, match)
        subscription = Subscription(self.ledger, cursor, gated=self.gated)
        self.subscribers[trigger_id] = Subscriber(cursor, subscription, on_failed)
        if expected is not None:
            self.expected = frozenset(expected)
        self._membership_changed()
        return subscription

    def resume(self, trigger_id: Hashable) -> Subscription:
        subscriber = self.subscribers[trigger_id]
        subscriber.subscription.retire()
        subscriber.cursor.resume()
        subscriber.subscription = Subscription(self.ledger, subscriber.cursor, gated=self.gated)
        return subscriber.subscription

    def unsubscribe(self, trigger_id: Hashable, *, abandon: bool) -> None:
        """A plain leave takes the name off `expected`, also one that is not subscribed."""
        if not abandon and self.expected is not None:
            self.expected -= {trigger_id}
        subscriber = self.subscribers.pop(trigger_id, None)
        if subscriber is not None:
            self.ledger.leave(subscriber.cursor, abandon=abandon)
            self._tell(subscriber, StreamError(f"trigger {trigger_id!r} is not subscribed any more"))
        self._membership_changed()

    @property
    def missing(self) -> frozenset[Hashable]:
        """The expected subscribers that are absent or failed."""
        return frozenset(self._missing)

    def _membership_changed(self) -> None:
        absent = (self.expected or frozenset()) - self.ledger.cursors.keys() - self.ledger.indexed.keys()
        until = self._loop.time() + self.settings.cohort_grace_period
        self._missing = {name: self._missing.get(name, until) for name in absent}
        self._changed.set()

    def _fail(self, subscriber: Subscriber, error: Exception) -> None:
        """Fail one subscriber; its siblings go on."""
        self.ledger.fail(subscriber.cursor, error)
        self._log.warning("stream %r: %s", self.key, error)
        if self._observer is not None:
            self._observer.on_subscriber_failed(self.key, subscriber.cursor.id, error)
        self._tell(subscriber, error)
        self._membership_changed()
        self._call_on_failed(subscriber, error)

    def _tell(self, subscriber: Subscriber, error: Exception) -> None:
        """The subscriber gets the error at its next pull, or at once if it waits in one."""
        cursor = subscriber.cursor
        cursor.failure = cursor.failure or error
        wake(cursor)

    def _call_on_failed(self, subscriber: Subscriber, error: Exception) -> None:
        if subscriber.on_failed is not None:
            try:
                subscriber.on_failed(error)
            except Exception:
                self._log.exception("stream %r: on_failed of %r raised", self.key, subscriber.cursor.id)

    # -- life

    async def _run(self) -> None:
        helpers = [self._helper(self._poll())]
        if self.gated:
            helpers.append(self._helper(self._sweep()))
        try:
            await self._over.wait()
        finally:
            self.end(None)
            try:
                await self._close(helpers)
            finally:
                self.state = StreamState.CLOSED
                self.closed.set()

    def _helper(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task without which the stream cannot go on: should it fail, the stream ends."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._helper_ended)
        return task

    def _helper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.end(error)

    def end(self, error: Exception | None) -> None:
        """End the stream, synchronously; idempotent. None: it was stopped."""
        if self._over.is_set():
            return
        self._over.set()
        self.state = StreamState.ENDED
        self.error = error
        self._on_end(self)
        if error is not None:
            self._log.error("stream %r ended: %r", self.key, error)
        reason = error if error is not None else StreamEnded(f"the stream {self.key!r} was stopped")
        for subscriber in list(self.subscribers.values()):
            subscriber.cursor.be_careful()
            self._tell(subscriber, reason)
        for subscriber in list(self.subscribers.values()):
            self._call_on_failed(subscriber, reason)

    async def _close(self, helpers: list[asyncio.Task[None]]) -> None:
        """Settle what is resolved while the source is still open, then close it; each within its deadline."""
        if self._pump is not None and self._settling is not None:
            self._pump.stop()
            await self._give(self._settling, self.settings.advance_timeout)
        for helper in helpers:
            helper.cancel()
        closing = self._loop.create_task(self._close_source(helpers))
        if not await self._give(closing, self.settings.close_timeout):
            self._log.error("stream %r: the source did not close within %s s", self.key, self.settings.close_timeout)
        if self._predecessor is not None:
            await self._predecessor.closed.wait()  # a successor waits for this stream alone

    async def _close_source(self, helpers: list[asyncio.Task[None]]) -> None:
        await asyncio.wait(helpers)
        if self._producer is not None:
            try:
                await self._producer.aclose()
            except SourceUnavailable as error:  # as is to be expected where that ended the stream
                self._log.warning("stream %r: closing the source failed: %s", self.key, error)
            except Exception:
                self._log.warning("stream %r: closing the source failed", self.key, exc_info=True)

    async def _give(self, task: asyncio.Task[None], seconds: float) -> bool:
        """Let a task end within `seconds`, else cancel it and go on; whether it ended."""
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            task.cancel()
        return bool(done)

    # -- reading

    async def _poll(self) -> None:
        """Wait for the predecessor and the cohort, then read until the stream is over."""
        try:
            if self._predecessor is not None:
                await self._predecessor.closed.wait()
                self._predecessor = None
            await self._gather_cohort()
            self._producer = producer = self._make_producer()
            self.ledger.set_ordered(producer.capabilities.ordered)
            self._start_pump(producer)
            self.state = StreamState.POLLING
            await self._read(producer)
            raise StreamEnded(f"the source of the stream {self.key!r} returned; sources yield for ever, or raise")
        except Exception as error:
            self.end(error)

    def _start_pump(self, producer: SharedStreamProducer) -> None:
        parallel = max(1, min(self.settings.max_parallel_advances, producer.capabilities.parallel_advances))
        self._pump = Pump(
            self.key,
            producer,
            self.ledger,
            PumpSettings(parallel, self.settings.advance_timeout, self.settings.advance_retries),
            on_error=self.end,
            regulate=self._regulate,
            observer=self._observer,
            log=self._log,
        )
        self._settling = self._helper(self._pump.run())

    async def _gather_cohort(self) -> None:
        """Wait out the grace, or only until all who are expected are there."""
        deadline = self._loop.time() + self.settings.cohort_grace_period
        while (left := deadline - self._loop.time()) > 0 and (self.expected is None or self._missing):
            await self._wait(left)
        if self._missing:
            self._log.warning("stream %r starts without %s", self.key, sorted(map(str, self._missing)))

    async def _read(self, producer: SharedStreamProducer) -> None:
        batches = producer.open_batches()
        try:
            async for batch in batches:
                if self._over.is_set():
                    return
                if isinstance(batch, LaneLost):
                    lane = self.ledger.lose_lane(batch.lane)
                    if lane is not None:
                        self._paused.discard(lane)
                elif batch:
                    self.ledger.restarted.clear()
                    await self._fan_out(EventBatch.collect(producer, batch))
        finally:
            if (aclose := getattr(batches, "aclose", None)) is not None:
                await aclose()

    async def _fan_out(self, batch: EventBatch) -> None:
        """Hand a batch to the cohort, in as many parts as the bounds ask for. After each wait everything is asked anew."""
        while not self._over.is_set():
            if not self._has_turned:  # the source did not suspend: let the subscribers drain what they have
                await asyncio.sleep(0)
                continue
            if self._missing and (left := max(self._missing.values()) - self._loop.time()) > 0:
                await self._wait(left)  # hold the events back for who is absent
                continue
            count = len(batch.raws)
            room = self._room(batch, count)
            if not room:
                await self._wait_for_pressure(None)
                continue
            part = batch if room == count else batch[:room]
            admitted, full = self.ledger.admit(part, self.settings.subscriber_queue_size)
            overflowed: list[Subscriber] = []
            if not admitted:
                overflowed = self._overflowed(full)
                if not overflowed:
                    await self._await_subscribers(full)
                    continue
                if len(overflowed) < len(full):  # the others have no room either, and grace left
                    self._fail_overflowed(overflowed)
                    continue
                admitted = 1  # the event that did not fit fails for who had no room
            if admitted < room:
                part = part[:admitted]
            self._publish(part)
            self._fail_overflowed(overflowed)
            if admitted == count:
                return
            batch = batch[admitted:]

    def _publish(self, batch: EventBatch) -> None:
        ledger = self.ledger
        size_before = ledger.in_flight_bytes
        count = len(batch.raws)
        offered = ledger.publish(batch, now=self._loop.time(), absent=len(self._missing))
        if self._observer is not None:
            self._observer.on_read(self.key, count, ledger.in_flight_bytes - size_before)
        for cursor in ledger.cursors.values():
            if (waiter := cursor.waiter) is not None and not waiter.done():
                waiter.set_result(None)
        for indexed in offered:
            wake(indexed)
        for key in (batch.lane,) if batch.lanes is None else set(batch.lanes):
            self._regulate(ledger.lanes[key])
        self._has_turned = False
        self._loop.call_soon(self._after_turn)

    def _after_turn(self) -> None:
        """Everybody who could drain the last batch has; who has not is watched from now on."""
        self._has_turned = True
        self.ledger.watch()

    # -- pressure

    def _room(self, batch: EventBatch, events: int) -> int:
        """How many of the batch's events the bounds in flight admit; one always enters an empty stream."""
        ledger = self.ledger
        count = self.settings.max_in_flight - ledger.in_flight
        left = self.settings.max_in_flight_bytes - ledger.in_flight_bytes
        if count >= events and batch.byte_size <= left:
            return events
        room = 0
        for size in batch.sizes if batch.sizes is not None else repeat(UNKNOWN_SIZE, events):
            left -= size
            if left < 0 or room >= count:
                break
            room += 1
        return max(room, 0 if ledger.in_flight else 1)

    async def _await_subscribers(self, full: list[AnyCursor]) -> None:
        """Wait until one that is full has pulled, or has used up its grace, and charge each of them."""
        subscribers = [self.subscribers[cursor.id] for cursor in full]
        started = self._loop.time()
        self.ledger.await_room(full)
        await self._wait_for_pressure(min(self._grace_left(subscriber) for subscriber in subscribers))
        self.ledger.full.difference_update(full)
        now = self._loop.time()
        for subscriber in subscribers:
            subscriber.charge(now, now - started)

    def _grace_left(self, subscriber: Subscriber) -> float:
        return self.settings.overflow_grace - subscriber.charged(self._loop.time())

    def _overflowed(self, full: list[AnyCursor]) -> list[Subscriber]:
        """Those who are full and have used up their grace, but for what rounding leaves of it."""
        subscribers = [self.subscribers[cursor.id] for cursor in full]
        return [subscriber for subscriber in subscribers if self._grace_left(subscriber) < 1e-6]

    def _fail_overflowed(self, overflowed: list[Subscriber]) -> None:
        for subscriber in overflowed:
            error = SubscriberOverflow(
                f"subscriber {subscriber.cursor.id!r} had {self.settings.subscriber_queue_size} events unpulled, and the stream "
                f"waited for it for more than {self.settings.overflow_grace} s in the last {OVERFLOW_WINDOW:.0f}"
            )
            self._fail(subscriber, error)

    async def _wait_for_pressure(self, seconds: float | None) -> None:
        """Wait for a change with the source paused."""
        assert self._producer is not None
        if not self._is_paused:
            self._is_paused = True
            self._producer.pause(None)
        try:
            await self._wait(seconds)
        finally:
            self._is_paused = False
            self._producer.resume(None)
            for lane in self._paused:
                self._producer.pause(lane.key)

    def _regulate(self, lane: Lane) -> None:
        """Pause the one lane that holds half of what may be in flight, or is broken; let it go on when it is well."""
        if self._producer is None or lane.is_lost:
            return
        bound = self.settings
        must_pause = lane.key is not UNORDERED and (
            lane.broken is not None
            or lane.restarting
            or 2 * lane.events >= bound.max_in_flight
            or 2 * lane.bytes >= bound.max_in_flight_bytes
        )
        if must_pause and lane not in self._paused:
            self._paused.add(lane)
            self._producer.pause(lane.key)
        elif not must_pause and lane in self._paused:
            self._paused.remove(lane)
            self._producer.resume(lane.key)

    async def _wait(self, seconds: float | None) -> None:
        """Wait for any change of membership, room or settlement, at most `seconds`."""
        self._changed.clear()
        self._is_reader_waiting = True
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
        finally:
            self._is_reader_waiting = False

    def _on_news(self) -> None:
        if self._pump is not None:
            self._pump.wake()
        if self._is_reader_waiting:
            self._changed.set()

    # -- time

    async def _sweep(self) -> None:
        """Fail who is overdue, no later than a tenth of the timeout after."""
        ack_timeout = self.settings.ack_timeout
        queue_timeout = self.settings.queue_timeout if self.settings.queue_timeout is not None else ack_timeout
        interval = max(0.01, min(ack_timeout, queue_timeout) / 10) / 2
        while True:
            await asyncio.sleep(interval)
            now = self._loop.time()
            self._count_away(now)
            for cursor, reason in self.ledger.sweep(now, ack_timeout, queue_timeout):
                subscriber = self.subscribers[cursor.id]
                self._fail(subscriber, AckTimeout(f"subscriber {cursor.id!r} was too slow: {reason}"))

    def store_available(self, available: bool) -> None:
        """While the store is away, the clock of events that wait for nothing else stands still."""
        now = self._loop.time()
        self._count_away(now)
        self._away_since = None if available else now

    def _count_away(self, now: float) -> None:
        if self._away_since is not None:
            self.ledger.store_away += now - self._away_since
            self._away_since = now
