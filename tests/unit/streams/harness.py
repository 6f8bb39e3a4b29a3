"""A stream under the test's hand: a source that is fed batches and notes what it is told, filters that keep what they saw."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any

from headrace import (
    AdvanceItem,
    AdvanceOutcome,
    BaseEventTrigger,
    Capabilities,
    LaneLost,
    SharedStreamManager,
    SharedStreamProducer,
    TriggerEvent,
)

KEY = "stream"


class Source(SharedStreamProducer):
    """Yields what `feed` was given; the payload of an event is `(lane, event)` unless the event is such a pair already."""

    def __init__(self, *, ordered: bool = False, parallel: int = 1) -> None:
        self.capabilities = Capabilities(ordered=ordered, parallel_advances=parallel)
        self.batches: asyncio.Queue[Any] = asyncio.Queue()
        self.calls: list[list[AdvanceItem]] = []
        self.opened = 0
        self.closed = 0
        self.pauses: list[tuple[str, Hashable]] = []
        self.trouble: deque[Callable[[Sequence[AdvanceItem]], Any]] = deque()
        """What the next `advance` calls do first: may raise, may be awaited."""

    def feed(self, *events: Any, lane: Hashable = None) -> None:
        self.batches.put_nowait([(event, (lane, event)) for event in events])

    def feed_mixed(self, *pairs: tuple[Hashable, Any]) -> None:
        self.batches.put_nowait([(event, (lane, event)) for lane, event in pairs])

    def lose(self, lane: Hashable) -> None:
        self.batches.put_nowait(LaneLost(lane))

    def fail(self, error: BaseException | None) -> None:
        """Let the source raise; None: return."""
        self.batches.put_nowait(error)

    async def open_batches(self) -> AsyncIterator[Any]:
        self.opened += 1
        while True:
            batch = await self.batches.get()
            if batch is None:
                return
            if isinstance(batch, BaseException):
                raise batch
            yield batch

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        return broker_payload[0]

    def pause(self, lane: Hashable | None = None) -> None:
        self.pauses.append(("pause", lane))

    def resume(self, lane: Hashable | None = None) -> None:
        self.pauses.append(("resume", lane))

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        if self.trouble:
            result = self.trouble.popleft()(batch)
            if result is not None:
                await result
        self.calls.append(list(batch))

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def settled(self) -> list[tuple[Any, AdvanceOutcome]]:
        """Every event told, with its outcome, over all calls."""
        return [(item.broker_payload[1], item.outcome) for call in self.calls for item in call]

    @property
    def counts(self) -> dict[Any, tuple[int, int, int]]:
        return {event: (outcome.acked, outcome.failed, outcome.rejected) for event, outcome in self.settled}


def trigger_of(source: Source | Callable[[], SharedStreamProducer], match: Any = None) -> BaseEventTrigger:
    """A trigger whose producer is this source."""

    class Watching(BaseEventTrigger):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "tests.Watching", {}

        def shared_stream_key(self) -> Hashable:
            return KEY

        def shared_stream_match(self) -> Any:
            return match

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
            return source if isinstance(source, SharedStreamProducer) else source()

    return Watching()


class Filter:
    """A subscriber with a task of its own: keeps what it saw; `handle(event)` may be awaited and returns what to yield."""

    def __init__(
        self,
        manager: SharedStreamManager,
        source: Source | Callable[[], SharedStreamProducer],
        name: Hashable = "a",
        handle: Callable[[Any], Any] | None = None,
        *,
        match: Any = None,
        auto_confirm: bool = False,
        **subscribe: Any,
    ) -> None:
        self.manager = manager
        self.name = name
        self.handle = handle
        self.auto_confirm = auto_confirm
        self.seen: list[Any] = []
        self.writes: dict[Any, int | None] = {}
        self.errors: list[Exception] = []
        self.stream = manager.subscribe(
            trigger_id=name, trigger=trigger_of(source, match), key=KEY, on_failed=self.errors.append, **subscribe
        )
        self.task = asyncio.create_task(self._run())

    async def filter(self) -> AsyncIterator[TriggerEvent]:
        async for event in self.stream:
            self.seen.append(event)
            if self.handle is not None:
                derived = self.handle(event)
                if asyncio.iscoroutine(derived) or isinstance(derived, asyncio.Future):
                    derived = await derived
                if derived is not None:
                    yield TriggerEvent(derived)

    async def _run(self) -> None:
        async for event in self.filter():
            write_id = self.manager.bind_pending_event(trigger_id=self.name, key=KEY, size=1)
            self.writes[event.payload] = write_id
            if self.auto_confirm and write_id is not None:
                self.manager.confirm_persisted([write_id])

    def confirm(self, *payloads: Any) -> None:
        self.manager.confirm_persisted([self.writes[payload] for payload in payloads if self.writes[payload] is not None])

    async def leave(self, *, abandon: bool = False) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.manager.unsubscribe(self.name, KEY, abandon=abandon)


async def turns(count: int = 20) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)
