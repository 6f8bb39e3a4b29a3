"""What the conformance suite needs of a broker (`Harness`), and how it reads a stream and settles events (`Reader`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from headrace.connector import Message
from headrace.errors import SourceUnavailable
from headrace.streams.contract import AdvanceItem, AdvanceOutcome, LaneLost, Rejection, SharedStreamProducer

ACKED: Final = AdvanceOutcome(acked=1, failed=0)
FAILED: Final = AdvanceOutcome(acked=0, failed=1)
REJECTED: Final = AdvanceOutcome(acked=0, failed=0, rejected=1, rejections=(Rejection("suite", "not an order", 1),))
NOBODY: Final = AdvanceOutcome(acked=0, failed=0)


class DeadLetter(NamedTuple):
    """What the broker's own dead-letter place holds of a message. `reason`: what it says of why, None where it cannot."""

    message: Message
    reason: str | None


class Harness(ABC):
    """One topic, queue or subscription that is empty at first, and belongs to one test.

    Give it to the suite as the pytest fixture `harness`. The suite runs a scenario as `harness.run(coroutine)`, inside
    `async with harness`; both may be overridden. Waits are in the seconds of the loop that `run` uses.
    """

    patience: float = 15.0
    """Seconds in which what must happen has happened, also a redelivery after a failure or a crash."""
    quiet: float = 0.5
    """Seconds without an event after which none is thought to come."""
    hot: int = 20
    """Redeliveries of one event in one second that fails each time: more are a hot loop."""
    cannot_carry: frozenset[str] = frozenset()
    """Of `null value`, `empty value`, `empty key`, `null header`, `repeated header`: what the broker has no room for."""
    shares_lanes: bool = False
    """Whether two producers open at once share the messages lane by lane, without a rebalance. Steers one scenario."""

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    @abstractmethod
    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish `value`, `key` and `headers`, in order; return when the broker has them."""

    @abstractmethod
    def create_producer(self) -> SharedStreamProducer:
        """Build another producer of the same subscription, as the connector would."""

    @abstractmethod
    async def remaining(self) -> Sequence[bytes | None]:
        """The values of what is not settled, wherever it is: what a consumer that comes later still gets. In any order."""

    async def dead_letters(self) -> Sequence[DeadLetter] | None:
        """What was dead-lettered on the broker; None where it has no such place."""
        return None

    async def consumers(self) -> int | None:
        """How many producers the broker sees connected; None where it cannot tell."""
        return None

    async def crash(self, producer: SharedStreamProducer) -> bool:
        """End an open producer as if its process was killed: nothing more is said to the broker by it. Return when what it
        held may be handed out again, or will be within `patience`. False: this harness cannot."""
        return False

    def outage(self) -> AbstractAsyncContextManager[None] | None:
        """Take the broker away inside the context, so that calls to it fail; None: this harness cannot."""
        return None

    def message_of(self, raw_event: Any) -> Message:
        """The `Message` in what the producer yields as raw event; itself for a connector's."""
        return cast("Message", raw_event)


@dataclass(slots=True, eq=False)
class Event:
    """One hand-out of a message."""

    message: Message
    payload: Any
    lane: Hashable
    id: str | None
    at: float
    """Loop time."""

    @property
    def value(self) -> bytes | None:
        return self.message.value


class Reader:
    """Reads a producer as the engine does: in a task that pulls, and is cancelled before `aclose`.

    Use it as an async context. `events` is everything handed out so far, `take` hands on what was not taken yet.
    """

    def __init__(self, harness: Harness, producer: SharedStreamProducer | None = None) -> None:
        self.harness = harness
        self.producer = producer if producer is not None else harness.create_producer()
        self.events: list[Event] = []
        self.lost: list[Hashable] = []
        self._taken = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name="conformance reader")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _read(self) -> None:
        batches = cast("AsyncGenerator[Sequence[tuple[Any, Any]] | LaneLost, None]", self.producer.open_batches())
        loop = asyncio.get_running_loop()
        try:
            async for batch in batches:
                if isinstance(batch, LaneLost):
                    self.lost.append(batch.lane)
                    continue
                assert len(batch) > 0, "a batch has at least one event"
                for raw, payload in batch:
                    message = self.harness.message_of(raw)
                    lane = self.producer.get_advance_lane(payload)
                    hash(lane)
                    event_id = self.producer.get_event_id(payload) or getattr(raw, "id", None)
                    self.events.append(Event(message, payload, lane, event_id, loop.time()))
                self._news.set()
                await asyncio.sleep(0)  # a producer with much to hand out keeps nobody else from running
            raise AssertionError("open_batches returned: sources run for ever or raise")
        finally:
            self._news.set()
            if (aclose := getattr(batches, "aclose", None)) is not None:
                await aclose()

    async def take(self, count: int = 1) -> list[Event]:
        """Wait for that many events that were not taken yet. Raises what the producer raised, and fails after `patience`."""
        wanted = self._taken + count
        try:
            await self.until(lambda: len(self.events) >= wanted)
        except TimeoutError:
            got = [event.value for event in self.events[self._taken :]]
            raise AssertionError(
                f"expected {count} more events within {self.harness.patience:g} s, got {len(got)}: {got[:20]}"
            ) from None
        self._taken = wanted
        return self.events[wanted - count : wanted]

    async def until(self, condition: Callable[[], bool], *, beside: Reader | None = None) -> None:
        """Wait until a condition on what was read, also by a reader beside, holds. Raises `TimeoutError` after `patience`."""
        if beside is not None:
            beside._news = self._news
        async with asyncio.timeout(self.harness.patience):
            while not condition():
                self._news.clear()
                if self._task is not None and self._task.done():
                    await self._task
                await self._news.wait()

    async def expect_quiet(self, why: str) -> None:
        """Fail if an event comes within `quiet` seconds, or came already and was not taken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.harness.quiet):
                await self.until(lambda: len(self.events) > self._taken)
        late = [event.value for event in self.events[self._taken :]]
        assert not late, f"{why}, but these came: {late[:20]}"

    async def error(self) -> BaseException:
        """Wait until the producer ends its stream, and return with what."""
        assert self._task is not None
        async with asyncio.timeout(self.harness.patience):
            await asyncio.wait([self._task])
        failure = self._task.exception()
        assert failure is not None
        return failure

    async def settle(self, events: Iterable[Event], outcome: AdvanceOutcome) -> None:
        """Settle events with one outcome, lane by lane, each lane in the order given."""
        lanes: dict[Hashable, list[AdvanceItem]] = {}
        for event in events:
            lanes.setdefault(event.lane, []).append(AdvanceItem(event.payload, outcome))
        for items in lanes.values():
            await self.advance(items)

    async def advance(self, items: Sequence[AdvanceItem]) -> None:
        """One call, tried again as the engine does when the source is unavailable; fails after `patience`."""
        try:
            async with asyncio.timeout(self.harness.patience):
                while True:
                    try:
                        return await self.producer.advance(items)
                    except SourceUnavailable:
                        await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"advance did not succeed within {self.harness.patience:g} s") from None

    async def stop_reading(self) -> None:
        """Cancel the pull, as the engine does at the end of a poll. It must end at once, as cancelled."""
        if self._task is None:
            return
        task, self._task = self._task, None
        if task.done():
            if not task.cancelled():
                task.exception()  # was raised by take or error, or belongs to a test that failed otherwise
            return
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=self.harness.patience)
        assert not pending, "a cancelled pull must end at once: is CancelledError swallowed?"
        assert task.cancelled(), f"a cancelled pull ended with {task.exception()!r} instead"

    async def close(self) -> None:
        """End the poll: cancel the pull, then `aclose`. What is in flight is left unsettled."""
        await self.stop_reading()
        async with asyncio.timeout(self.harness.patience):
            await self.producer.aclose()
