"""What stands around a stream in the model test: a source that does as it is told, and filters that do as they are told.

Both report every step to the `World`, which tells the naive model and compares. Nothing here looks into the engine.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from headrace import (
    AdvanceItem,
    BaseEventTrigger,
    Capabilities,
    LaneLost,
    SharedStreamProducer,
    SourceUnavailable,
    reject_shared_stream_event,
)

if TYPE_CHECKING:
    from tests.model.naive import Member
    from tests.model.world import Life, World

KEY = "stream"
FATAL = RuntimeError("the broker said no")


class Raw(dict[str, Any]):
    """A raw event: name, lane, kind (what indexed subscribers choose by) and size."""

    __slots__ = ("__weakref__",)


class Source(SharedStreamProducer):
    """Yields the batches it is fed; makes the trouble it is told to."""

    def __init__(self, world: World, life: Life, *, ordered: bool, parallel: int) -> None:
        self.capabilities = Capabilities(ordered=ordered, parallel_advances=parallel, byte_size=lambda raw, _: raw["size"])
        self.world = world
        self.life = life
        self.is_open = False
        self.closed = 0

    async def open_batches(self) -> AsyncIterator[Any]:
        self.world.opened(self)
        self.is_open = True
        while True:
            while not self.life.feed:
                self.life.fed.clear()
                await self.life.fed.wait()
            batch = self.life.feed.popleft()
            if batch is None:
                return
            if isinstance(batch, BaseException):
                raise batch
            if isinstance(batch, LaneLost):
                self.world.lost(self.life, batch.lane)
                yield batch
            else:
                self.world.read(self.life, batch)
                yield [(raw, raw["name"]) for raw in batch]

    def get_advance_lane(self, broker_payload: int) -> Hashable:
        return self.world.lane_of[broker_payload]

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        world = self.world
        call = world.call_begins(self, list(batch))
        error: BaseException | None = None
        try:
            trouble = world.troubles.popleft() if world.troubles else "none"
            if trouble == "slow":
                await asyncio.sleep(2)
            elif trouble == "hangs":
                await asyncio.sleep(10_000)
            elif trouble == "hangs, and raises when cancelled":
                try:
                    await asyncio.sleep(10_000)
                except asyncio.CancelledError:
                    raise ConnectionError("the connection broke") from None
            elif trouble == "unavailable":
                raise SourceUnavailable("the broker is away")
            elif trouble == "fatal":
                raise FATAL
            elif trouble == "cancelled inside":
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
        except BaseException as raised:
            error = raised
            raise
        finally:
            world.call_ends(self, call, returns=error is None, error=error)

    def pause(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self.world.reader_waits(self.life)

    def resume(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self.world.reader_goes_on(self.life)

    async def aclose(self) -> None:
        self.closed += 1
        try:
            if self.world.closing == "slow":
                await asyncio.sleep(1)
            elif self.world.closing == "hangs":
                await asyncio.sleep(10_000)
        finally:
            self.is_open = False
            self.world.closed_at = asyncio.get_running_loop().time()


class OneByOne(Source):
    """The same through `open_stream`: batches of one event, and no lost lanes."""

    open_batches = SharedStreamProducer.open_batches

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        async with aclosing(Source.open_batches(self)) as batches:
            async for (pair,) in batches:
                yield pair


class FilterError(Exception):
    """What a filter raises."""


class Actor:
    """A subscriber, and the task that runs its filter.

    `style`: how the filter pulls: `for` (`async for`), `anext`, `wait_for` (`anext` with a timeout that is often over first), or
    `wait_for aiter` (the same on the iterator that `async for` uses).
    """

    def __init__(self, world: World, member: Member, style: str, stream: AsyncIterator[Any]) -> None:
        self.world = world
        self.member = member
        self.style = style
        self.stream = stream
        self.scripts: deque[list[str]] = deque()
        """What to do with each of the next events; then they are skipped."""
        self.is_asking = False
        self.is_unasked = False
        """Its pull begins in another task, and may not have begun."""
        self.has_parked = False
        """It has asked for the next event, and there was none."""
        self.drops_pull = False
        self.error: BaseException | None = None
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"filter {member.id}")

    async def _run(self) -> None:
        while True:
            try:
                await self._filter()
            except FilterError as error:
                if not self.world.resumed(self):
                    self.error = error
                    return
            except asyncio.CancelledError as error:
                if not self.drops_pull:
                    self.error = error
                    raise
                self.drops_pull = False
                asyncio.current_task().uncancel()  # type: ignore[union-attr]
                self.world.pull_dropped(self)
            except Exception as error:
                self.world.pull_failed(self, error)
                self.error = error
                return

    async def _filter(self) -> None:
        if self.style == "for":
            self.world.asks(self)
            async for raw in self.stream:
                await self._handle(raw)
                self.world.asks(self)
            raise StopAsyncIteration
        while True:
            # cancelled, the iterator that `async for` uses has ended
            events = aiter(self.stream) if self.style == "wait_for aiter" else self.stream
            if self.style == "anext":
                self.world.asks(self)
                raw = await anext(events)
            else:
                self.world.asks(self, in_a_turn=sys.version_info < (3, 12))
                try:
                    raw = await asyncio.wait_for(anext(events), 1.5)
                except TimeoutError:
                    self.world.pull_dropped(self)
                    continue
            await self._handle(raw)

    async def _handle(self, raw: Raw) -> None:
        self.world.takes(self, raw)
        for act in self.scripts.popleft() if self.scripts else ():
            if act.startswith("derive"):
                self.world.derives(self, act)
            elif act == "reject":
                self.world.rejects(self, lambda: reject_shared_stream_event("bad"))
            elif act == "raise":
                raise FilterError
            else:
                await asyncio.sleep({"turn": 0, "short": 0.3, "long": 4, "too long": 15}[act])


def trigger_of(make_source: Callable[[], SharedStreamProducer], wants: set[int] | None) -> BaseEventTrigger:
    class Watching(BaseEventTrigger):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "tests.Watching", {}

        def shared_stream_match(self) -> Any:
            return None if wants is None else {"kind": wants}

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
            return make_source()

    return Watching()
