"""A broker in memory and its producer: the contract in the fewest lines, and a source for tests of what is above it.

It runs on the loop's clock, without jitter, so in virtual time every run is the same. A message is in one of three places:
free, postponed after a failure, or held by a consumer under a receipt. A lane (the message's key) is with one consumer at a
time, and waits while its first message is postponed. Producers that are wrong on purpose are made from this one in `faulty`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from headrace.connector import Message
from headrace.errors import SourceUnavailable
from headrace.streams.contract import UNORDERED, AdvanceItem, AdvanceOutcome, Capabilities, SharedStreamProducer

__all__ = ["DeadLetter", "MemoryBroker", "MemoryProducer", "Receipt"]

Event = tuple[Message, "Receipt"]


class Receipt(NamedTuple):
    """The broker payload of an event: which message, and which hand-out of it."""

    offset: int
    receipt: int
    lane: Hashable


class DeadLetter(NamedTuple):
    message: Message
    reason: str


@dataclass(slots=True, eq=False)
class _Stored:
    offset: int
    message: Message
    lane: Hashable
    failures: int = 0
    owner: MemoryProducer | None = None
    receipt: int = 0
    due: float = 0.0


class MemoryBroker:
    """One queue. `publish` may be called from any thread; everything else belongs to its consumers' loop.

    `available = False` is an outage: opening and settling raise `SourceUnavailable`. A failed message comes again after
    `backoff` seconds, doubled at each further failure up to `max_backoff`; what a crashed consumer held, after `lease_seconds`.
    """

    def __init__(
        self, name: str = "memory", *, backoff: float = 0.1, max_backoff: float = 10.0, lease_seconds: float = 10.0
    ) -> None:
        self.name = name
        self.backoff = backoff
        self.max_backoff = max_backoff
        self.lease_seconds = lease_seconds
        self.available = True
        self.dead_letters: list[DeadLetter] = []
        self.consumers: list[MemoryProducer] = []
        self._messages: dict[int, _Stored] = {}
        self._offsets = itertools.count()
        self._receipts = itertools.count(1)
        self._expiring: dict[MemoryProducer, float] = {}

    def create_producer(self, *, batch_size: int = 100) -> MemoryProducer:
        return MemoryProducer(self, batch_size=batch_size)

    def publish(self, messages: Iterable[Message], *, timestamp: float = 0.0) -> None:
        """Append messages; `value`, `key` and `headers` are taken."""
        for given in messages:
            offset = next(self._offsets)
            message = Message(
                value=given.value,
                key=given.key,
                headers=given.headers,
                id=f"{self.name}/{offset}",
                source=self.name,
                timestamp=timestamp,
                delivery_count=1,
            )
            self._messages[offset] = _Stored(offset, message, UNORDERED if given.key is None else given.key)
        for consumer in tuple(self.consumers):
            consumer.wake()

    @property
    def waiting(self) -> list[Message]:
        """What is not settled, wherever it is, oldest first."""
        return [stored.message for stored in self._messages.values()]

    def connect(self, consumer: MemoryProducer) -> None:
        self.require_available()
        self.consumers.append(consumer)

    def disconnect(self, consumer: MemoryProducer) -> None:
        """End a consumer: what it holds is free at once, uncounted."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
        self._free(consumer)

    def crash(self, consumer: MemoryProducer) -> None:
        """End a consumer as if its process was killed: what it holds is free when its lease ends, and counts a failure."""
        self.consumers.remove(consumer)
        self._expiring[consumer] = asyncio.get_running_loop().time() + self.lease_seconds
        for other in self.consumers:
            other.wake()

    def require_available(self) -> None:
        if not self.available:
            raise SourceUnavailable(f"{self.name} is away")

    def take(self, consumer: MemoryProducer, limit: int, held: frozenset[Hashable], now: float) -> list[Event]:
        """Hand the oldest free messages to a consumer, but none of the held lanes."""
        self._expire(now)
        receipt = next(self._receipts)
        closed = set(held)
        taken: list[Event] = []
        for stored in self._messages.values():
            if len(taken) == limit:
                break
            if stored.owner is consumer or stored.lane in closed:
                continue
            if stored.owner is not None or stored.due > now:
                if stored.lane is not UNORDERED:
                    closed.add(stored.lane)
                continue
            stored.owner, stored.receipt = consumer, receipt
            taken.append((stored.message, Receipt(stored.offset, receipt, stored.lane)))
        return taken

    def next_change(self, now: float) -> float | None:
        """When the next postponed message is due or the next lease ends, in loop time."""
        due = (stored.due for stored in self._messages.values() if stored.owner is None and stored.due > now)
        return min([*due, *self._expiring.values()], default=None)

    def held(self, consumer: MemoryProducer, payload: Receipt) -> bool:
        """Whether the message is in flight under this very receipt."""
        stored = self._messages.get(payload.offset)
        return stored is not None and stored.owner is consumer and stored.receipt == payload.receipt

    def in_flight(self, consumer: MemoryProducer) -> list[Event]:
        """What a consumer holds, oldest first."""
        return [
            (stored.message, Receipt(stored.offset, stored.receipt, stored.lane))
            for stored in self._messages.values()
            if stored.owner is consumer
        ]

    def delete(self, payload: Receipt) -> None:
        del self._messages[payload.offset]

    def bury(self, payload: Receipt, reason: str) -> None:
        self.dead_letters.append(DeadLetter(self._messages.pop(payload.offset).message, reason))

    def postpone(self, payload: Receipt, now: float) -> None:
        """Take a message back after a failure: it is free after a backoff."""
        stored = self._messages[payload.offset]
        stored.due = now + min(self.backoff * 2.0**stored.failures, self.max_backoff)
        self._take_back(stored, failures=stored.failures + 1)

    def free_lane(self, consumer: MemoryProducer, lane: Hashable) -> None:
        """Take back what a consumer holds of a lane, uncounted."""
        for stored in self._messages.values():
            if stored.owner is consumer and stored.lane == lane:
                self._take_back(stored, failures=stored.failures)

    def _take_back(self, stored: _Stored, *, failures: int) -> None:
        stored.owner = None
        if failures != stored.failures:  # the message of the earlier delivery is with the subscribers: not to be changed
            stored.failures = failures
            old = stored.message
            stored.message = Message(
                value=old.value,
                key=old.key,
                headers=old.headers,
                id=old.id,
                source=old.source,
                timestamp=old.timestamp,
                delivery_count=failures + 1,
            )

    def _free(self, consumer: MemoryProducer, failures: int = 0) -> None:
        for stored in self._messages.values():
            if stored.owner is consumer:
                self._take_back(stored, failures=stored.failures + failures)
        for other in self.consumers:
            other.wake()

    def _expire(self, now: float) -> None:
        for consumer, until in tuple(self._expiring.items()):
            if until <= now:
                del self._expiring[consumer]
                self._free(consumer, failures=1)


class MemoryProducer(SharedStreamProducer):
    """One consumer of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, *, batch_size: int = 100) -> None:
        self.capabilities = Capabilities(
            ordered=True, parallel_advances=16, lease_seconds=broker.lease_seconds, counts_deliveries=True
        )
        self.broker = broker
        self.batch_size = batch_size
        self._all_paused = False
        self._paused: set[Hashable] = set()
        self._breaking: set[Hashable] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open_batches(self) -> AsyncIterator[Sequence[Event]]:
        self._loop = asyncio.get_running_loop()
        self.broker.connect(self)
        while True:
            self._changed.clear()
            if batch := self.take():
                yield batch
            else:
                await self.wait()

    def take(self) -> list[Event]:
        """The next events to hand out."""
        if self._all_paused:
            return []
        return self.broker.take(self, self.batch_size, frozenset(self._paused | self._breaking), self.now())

    async def wait(self) -> None:
        """Wait until there may be more."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self.broker.next_change(self.now())):
                await self._changed.wait()

    def get_advance_lane(self, broker_payload: Receipt) -> Hashable:
        return broker_payload.lane

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        lane = self.get_advance_lane(batch[0].broker_payload)
        kept = next((item for item in batch if self.is_kept(item.outcome)), None)
        breaks = kept is not None and lane is not UNORDERED
        if breaks:
            self._breaking.add(lane)  # handed out again when a call that says so has returned, not before
        await asyncio.sleep(0)  # as long as the way to a broker, at least
        self.broker.require_available()
        for item in batch:
            if self.broker.held(self, item.broker_payload):
                self.settle(item)
            if breaks and item is kept:
                break
        if breaks:
            self._breaking.discard(lane)
        self._changed.set()

    @staticmethod
    def is_kept(outcome: AdvanceOutcome) -> bool:
        """Any failure, or nobody there."""
        return outcome.failed > 0 or not (outcome.acked or outcome.rejected)

    def settle(self, item: AdvanceItem) -> None:
        payload: Receipt = item.broker_payload
        if self.is_kept(item.outcome):
            self.broker.postpone(payload, self.now())
            if payload.lane is not UNORDERED:
                self.broker.free_lane(self, payload.lane)
        elif item.outcome.rejected:
            self.broker.bury(payload, "; ".join(f"{who}: {reason}" for who, reason, _ in item.outcome.rejections))
        else:
            self.broker.delete(payload)

    def pause(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._all_paused = True
        else:
            self._paused.add(lane)

    def resume(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._all_paused = False
        else:
            self._paused.discard(lane)
        self._changed.set()

    def wake(self) -> None:
        """Look for more. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # its loop is closed
                self._loop.call_soon_threadsafe(self._changed.set)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        self.broker.disconnect(self)
