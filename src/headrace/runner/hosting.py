"""A producer on an event loop of its own in a thread of its own, seen from the engine's loop as a producer.

Heartbeats, leases and polls of the broker's client live on while a filter blocks the engine's loop; only code that holds the
GIL stops them. Events are described there, as they are yielded (`EventBatch.collect`), and cross in whole batches over a
bounded `Bridge`. What the engine takes for an event's payload is a `Carried`: it keeps the raw event until the event is
settled, so that a dead letter of it can be stored before the producer hears of a rejection.

The contract of an ordered lane holds across the bridge: what waits in it behind a failed event is of the old run, and is given
back in the very call that breaks the run off; what the producer yields during that call is given back before it returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from itertools import repeat
from typing import Any, Final, NamedTuple

from headrace.runner.bridge import Bridge, Ended
from headrace.runner.thread import LoopThread, call_threadsafe
from headrace.streams.batch import AdvanceBatch, EventBatch
from headrace.streams.contract import UNORDERED, AdvanceItem, AdvanceOutcome, LaneLost, SharedStreamProducer

log = logging.getLogger(__name__)

GIVEN_BACK: Final = AdvanceOutcome(0, 0, 0)
BUILD_TIMEOUT: Final = 30.0
THREAD_END_TIMEOUT: Final = 1.0


class Carried(NamedTuple):
    """The payload of an event between bridge and engine."""

    raw: Any
    payload: Any
    lane: Hashable
    event_id: str | None
    """What `get_event_id` said; None: it said nothing."""


# Whole columns become tuples without a call of Python code for each.
_carry = partial(tuple.__new__, Carried)
_item = partial(tuple.__new__, AdvanceItem)

BeforeSettle = Callable[[Sequence[AdvanceItem]], Awaitable[None]]
"""Gets the items with a rejection among them, their payloads being `Carried`, on the engine's loop."""


class HostedProducer(SharedStreamProducer):
    """Hosts the producer that `factory` builds; the factory is called in the thread. Raises what the factory raises.

    At most `max_events` events or `max_bytes` bytes, and one batch, wait for the engine; then the producer's generator is not
    pulled. `before_settle` is awaited before the producer hears of a rejection, again if it raised or was cancelled.
    `aclose` takes at most `close_timeout` seconds and a second more; a thread that hangs is named and left behind.
    """

    def __init__(
        self,
        factory: Callable[[], SharedStreamProducer],
        *,
        name: str,
        max_events: int = 4096,
        max_bytes: int = 16 * 2**20,
        close_timeout: float = 5.0,
        before_settle: BeforeSettle | None = None,
        make_thread: Callable[[str], LoopThread] = LoopThread,
    ) -> None:
        self.name = name
        self._close_timeout = close_timeout
        self._before_settle = before_settle
        self._recorded: dict[Hashable, dict[int, Carried]] = {}
        self._given_back: dict[Hashable, list[Any]] = {}
        self._calls: dict[Hashable, asyncio.Task[Any]] = {}
        self._thread = make_thread(f"producer:{name}")
        self._engine: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._closing = False
        self._bridge = Bridge(max_events, max_bytes, wake_taker=self._wake_engine, wake_putter=self._wake_pump)
        try:
            self._producer = self._thread.run_blocking(factory, BUILD_TIMEOUT)
        except BaseException:
            self._thread.request_stop()
            raise
        self.capabilities = self._producer.capabilities

    @property
    def hosted(self) -> SharedStreamProducer:
        """The producer in the thread. It belongs to the thread: use only what it offers to others."""
        return self._producer

    async def stats(self) -> Mapping[str, Any]:
        """What the producer tells of itself by a `stats()` of its own, plain or async, called in its thread; else nothing."""
        stats = getattr(self._producer, "stats", None)

        async def ask() -> Mapping[str, Any]:
            told: Any = stats() if stats is not None else {}
            return dict(await told if isawaitable(told) else told)

        return await self._thread.call(ask)

    def get_advance_lane(self, broker_payload: Carried) -> Hashable:
        return broker_payload.lane

    def get_event_id(self, broker_payload: Carried) -> str | None:
        return broker_payload.event_id

    # The way in.

    async def open_batches(self) -> AsyncGenerator[EventBatch | LaneLost, None]:
        """Yield what the producer yields, in columns. Raises what it raises, after the batches that came before."""
        self._engine = asyncio.get_running_loop()
        self._thread.call_soon(self._start_pump)
        try:
            while True:
                item = self._bridge.take()
                if item is None:
                    await self._arrived.wait()
                    self._arrived.clear()
                elif not isinstance(item, Ended):
                    if isinstance(item, LaneLost):
                        self._recorded.pop(item.lane, None)
                    yield item
                elif item.error is not None:
                    raise item.error
                else:
                    return
        finally:
            self._thread.call_soon(self._cancel_pump)

    def _wake_engine(self) -> None:
        if self._engine is not None:
            call_threadsafe(self._engine, self._arrived.set)

    def _wake_pump(self) -> None:
        self._thread.call_soon(self._room.set)

    def _start_pump(self) -> None:
        self._pump = asyncio.get_running_loop().create_task(self._run_pump(), name=f"poll:{self.name}")

    def _cancel_pump(self) -> None:
        self._closing = True
        if self._pump is not None:
            self._pump.cancel()

    async def _run_pump(self) -> None:
        """In the thread: move batches from the producer's generator to the bridge, until either ends."""
        error: BaseException | None = RuntimeError(f"the poll of {self.name} was cancelled inside the producer")
        batches = self._producer.open_batches()
        try:
            async for batch in batches:
                if isinstance(batch, LaneLost):
                    self._given_back.pop(batch.lane, None)
                    self._bridge.lose(batch.lane)
                elif batch and not self._bridge.put(self._describe(batch)):
                    await self._room.wait()
                    self._room.clear()
            error = None
        except Exception as raised:
            error = raised
            if self._closing:
                log.warning("%s: ending the poll raised %r", self.name, raised)
        except SystemExit as raised:
            error = RuntimeError(f"the producer of {self.name} asked the process to exit: {raised!r}")
        finally:
            self._bridge.end(error)
            if (aclose := getattr(batches, "aclose", None)) is not None:
                await aclose()

    def _describe(self, pairs: Sequence[tuple[Any, Any]]) -> EventBatch:
        batch = EventBatch.collect(self._producer, pairs)
        lanes = repeat(batch.lane) if batch.lanes is None else batch.lanes
        ids = repeat(None) if batch.ids is None else batch.ids
        batch.payloads = list(map(_carry, zip(batch.raws, batch.payloads, lanes, ids, strict=False)))
        return batch

    def pause(self, lane: Hashable | None = None) -> None:
        """Also keeps back what waits in the bridge, when all lanes pause."""
        if lane is None:
            self._bridge.pause()
        self._thread.call_soon(self._steer, self._producer.pause, lane)

    def resume(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._bridge.resume()
        self._thread.call_soon(self._steer, self._producer.resume, lane)

    def _steer(self, method: Callable[[Hashable | None], None], lane: Hashable | None) -> None:
        try:
            method(lane)
        except Exception as error:
            self._bridge.end(error)
            self._cancel_pump()

    # The way out.

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """As the producer's own, which is called in the thread; cancelled there when this is cancelled.

        One call of a lane waits there for the one before it, should that have outlived its cancellation.
        """
        lane = batch[0].broker_payload.lane
        await self._record_rejections(lane, batch)
        outcomes = [item.outcome for item in batch]
        items = list(map(_item, zip([item.broker_payload.payload for item in batch], outcomes, strict=True)))
        # What ends an old run breaks nothing off: of the new one a part may be with the engine, and the rest must follow it.
        is_stale = isinstance(batch, AdvanceBatch) and batch.is_stale
        if self.capabilities.ordered and lane is not UNORDERED and not is_stale and any(map(_breaks, outcomes)):
            await self._thread.call(lambda: self._in_turn(lane, partial(self._break_off, lane, items)))
            self._bridge.release(lane)  # not sooner: the engine takes what comes before this call returns for the old run
        else:
            await self._thread.call(lambda: self._in_turn(lane, partial(self._producer.advance, items)))
        self._recorded.pop(lane, None)

    async def _record_rejections(self, lane: Hashable, batch: Sequence[AdvanceItem]) -> None:
        rejected = [item for item in batch if item.outcome.rejected]
        if not rejected or self._before_settle is None:
            return
        recorded = self._recorded.setdefault(lane, {})
        if new := [item for item in rejected if id(item.broker_payload) not in recorded]:
            await self._before_settle(new)
            recorded.update((id(item.broker_payload), item.broker_payload) for item in new)

    async def _in_turn(self, lane: Hashable, call: Callable[[], Awaitable[None]]) -> None:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None
        before = self._calls.get(lane)
        self._calls[lane] = task
        try:
            if before is not None:
                await asyncio.wait((before,))
            await call()
        finally:
            if self._calls.get(lane) is task:
                del self._calls[lane]

    async def _break_off(self, lane: Hashable, items: list[AdvanceItem]) -> None:
        """Settle a run that ends in a failure, and give back what of it is on this side of the engine.

        What was given back in a call that failed is given back again in the next.
        """
        self._bridge.hold(lane)
        behind = self._given_back.setdefault(lane, [])
        behind += [carried.payload for carried in self._bridge.take_held(lane)]
        await self._producer.advance([*items, *map(_give_back, behind)])
        # No await between the return of a call and the look at what was yielded during it.
        while late := [carried.payload for carried in self._bridge.take_held(lane)]:
            behind += late
            await self._producer.advance(list(map(_give_back, late)))
        self._given_back.pop(lane, None)

    async def aclose(self) -> None:
        """Close the producer, end its thread. Raises what the producer's own raises, `TimeoutError` where it hangs."""
        try:
            async with asyncio.timeout(self._close_timeout) as deadline:
                await self._thread.call(self._close)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            where = self._thread.whereabouts()
            raise TimeoutError(
                f"{self.name}: not closed within {self._close_timeout} s, thread left behind at {where}"
            ) from error
        finally:
            self._thread.request_stop()
        if not await self._thread.stop(THREAD_END_TIMEOUT):
            log.error("%s: its thread does not end and is left behind at %s", self.name, self._thread.whereabouts())

    async def _close(self) -> None:
        if self._pump is not None:
            self._cancel_pump()
            await asyncio.wait((self._pump,))
        await self._producer.aclose()


def _breaks(outcome: AdvanceOutcome) -> bool:
    """Whether the event is to come again: somebody failed, or nobody was there."""
    return bool(outcome.failed) or not (outcome.acked or outcome.rejected)


def _give_back(payload: Any) -> AdvanceItem:
    return AdvanceItem(payload, GIVEN_BACK)
