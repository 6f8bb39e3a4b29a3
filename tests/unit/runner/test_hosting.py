"""A producer in a thread of its own keeps its contract across the bridge."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.errors import SourceMisconfigured, SourceUnavailable
from headrace.runner.hosting import GIVEN_BACK, Carried, HostedProducer
from headrace.streams.batch import AdvanceBatch, EventBatch
from headrace.streams.contract import (
    UNORDERED,
    AdvanceItem,
    AdvanceOutcome,
    Capabilities,
    LaneLost,
    Rejection,
    SharedStreamProducer,
)

ACKED = AdvanceOutcome(1, 0)
FAILED = AdvanceOutcome(0, 1)
REJECTED = AdvanceOutcome(0, 0, 1, (Rejection("t", "bad", 1),))


class Scripted(SharedStreamProducer):
    """Yields what the test puts into `feed`; its payloads are `(lane, number)`."""

    def __init__(self, capabilities: Capabilities = Capabilities(ordered=True)) -> None:  # noqa: B008
        self.capabilities = capabilities
        self.thread = threading.current_thread()
        self.feed: asyncio.Queue[Any] = asyncio.Queue()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pulls = 0
        self.advanced: list[list[tuple[Any, AdvanceOutcome]]] = []
        self.steered: list[tuple[str, Hashable]] = []
        self.closed = False
        self.on_advance: Callable[[], Any] = lambda: None

    async def open_batches(self) -> AsyncIterator[Sequence[tuple[Any, Any]] | LaneLost]:
        self.loop = asyncio.get_running_loop()
        while True:
            self.pulls += 1
            item = await self.feed.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                return
            yield item

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        self.advanced.append([tuple(item) for item in batch])
        result = self.on_advance()
        if asyncio.iscoroutine(result):
            await result

    def get_advance_lane(self, broker_payload: tuple[Hashable, int]) -> Hashable:
        return broker_payload[0]

    def pause(self, lane: Hashable | None = None) -> None:
        self.steered.append(("pause", lane))

    def resume(self, lane: Hashable | None = None) -> None:
        self.steered.append(("resume", lane))

    async def aclose(self) -> None:
        self.closed = True


def events(lane: Hashable, *numbers: int) -> list[tuple[bytes, tuple[Hashable, int]]]:
    return [(b"%d" % number, (lane, number)) for number in numbers]


class Bench:
    """A hosted `Scripted`, and what the engine would hold of it."""

    def __init__(self, **options: Any) -> None:
        capabilities = options.pop("capabilities", Capabilities(ordered=True))
        built: list[Scripted] = []

        def build() -> Scripted:
            built.append(Scripted(capabilities))
            return built[0]

        self.hosted = HostedProducer(build, name="orders", **options)
        (self.inner,) = built
        self.batches = self.hosted.open_batches()

    def feed(self, *items: Any) -> None:
        loop = self.hosted._thread.loop
        for item in items:
            loop.call_soon_threadsafe(self.inner.feed.put_nowait, item)

    async def pull(self) -> EventBatch | LaneLost:
        return await asyncio.wait_for(anext(self.batches), 5)

    async def settled_there(self) -> None:
        """What was asked of the thread before has happened, and the producer's generator ran until it waited."""
        for _ in range(5):
            await self.hosted._thread.call(lambda: asyncio.sleep(0))

    def numbers(self, batch: EventBatch | LaneLost) -> list[int]:
        assert isinstance(batch, EventBatch)
        return [carried.payload[1] for carried in batch.payloads]


@asynccontextmanager
async def hosting(**options: Any) -> AsyncIterator[Bench]:
    bench = Bench(**options)
    try:
        yield bench
    finally:
        await bench.batches.aclose()
        await bench.hosted.aclose()


def items(outcome: AdvanceOutcome, batch: EventBatch | LaneLost) -> list[AdvanceItem]:
    assert isinstance(batch, EventBatch)
    return [AdvanceItem(payload, outcome) for payload in batch.payloads]


async def test_it_lives_on_a_loop_and_thread_of_its_own() -> None:
    """The producer is built, polled, asked for lanes and told of outcomes in its thread."""
    async with hosting() as bench:
        bench.feed(events("p0", 1, 2))
        batch = await bench.pull()
        assert isinstance(batch, EventBatch)
        assert (batch.raws, batch.lane, batch.lanes, batch.sizes) == ([b"1", b"2"], "p0", None, [1, 1])
        assert batch.payloads[0] == Carried(b"1", ("p0", 1), "p0", None)
        await bench.hosted.advance(items(ACKED, batch))
        assert bench.inner.advanced == [[(("p0", 1), ACKED), (("p0", 2), ACKED)]]
        assert bench.inner.thread is not threading.current_thread()
        assert bench.inner.loop is not asyncio.get_running_loop()
    assert bench.inner.closed
    await asyncio.to_thread(bench.inner.thread.join, 5)
    assert not bench.inner.thread.is_alive()


async def test_k20_it_goes_on_while_the_engine_loop_is_blocked() -> None:
    """K20: heartbeats and polls live on while a filter blocks the engine's loop."""
    async with hosting() as bench:
        beats = 0

        async def heartbeat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.01)

        bench.hosted._thread.call_soon(lambda: setattr(bench.inner, "beat", asyncio.get_running_loop().create_task(heartbeat())))
        await bench.settled_there()
        before = beats
        time.sleep(0.3)  # noqa: ASYNC251  # the filter that blocks
        assert beats - before >= 5


async def test_r15_what_waits_behind_a_failed_event_is_given_back_in_the_same_call() -> None:
    """R15: events of the lane in the bridge leave with the failed one as given back; the engine never sees them."""
    async with hosting() as bench:
        bench.feed(events("p0", 5))
        first = await bench.pull()
        bench.feed([*events("p0", 6), *events("p1", 1)], events("p0", 7))
        await bench.settled_there()
        await bench.hosted.advance(items(FAILED, first))
        assert bench.inner.advanced == [[(("p0", 5), FAILED), (("p0", 6), GIVEN_BACK), (("p0", 7), GIVEN_BACK)]]
        assert bench.numbers(await bench.pull()) == [1]  # the other lane goes on
        bench.feed(events("p0", 5, 6))
        assert bench.numbers(await bench.pull()) == [5, 6]


async def test_r15_what_is_yielded_during_the_call_is_given_back_before_it_returns() -> None:
    """R15: the old run's events that come while the call is under way never reach the engine."""
    async with hosting() as bench:
        bench.feed(events("p0", 5))
        first = await bench.pull()

        async def late() -> None:
            bench.inner.on_advance = lambda: None
            bench.inner.feed.put_nowait(events("p0", 6, 7))
            await asyncio.sleep(0.01)

        bench.inner.on_advance = late
        await bench.hosted.advance(items(AdvanceOutcome(0, 0), first))
        assert [[payload[1] for payload, _ in call] for call in bench.inner.advanced] == [[5], [6, 7]]
        assert {outcome for _, outcome in bench.inner.advanced[1]} == {GIVEN_BACK}
        bench.feed(events("p0", 5))
        assert bench.numbers(await bench.pull()) == [5]


async def test_r15_the_new_run_waits_until_the_engine_has_heard_of_the_return() -> None:
    """R15: what the producer yields right after the call cannot overtake the call's return."""
    async with hosting() as bench:
        bench.feed(events("p0", 5))
        first = await bench.pull()
        puller = asyncio.ensure_future(bench.pull())
        returned = False

        def new_run() -> None:
            asyncio.get_running_loop().call_soon(bench.inner.feed.put_nowait, events("p0", 5))

        bench.inner.on_advance = new_run
        seen_early: list[bool] = []
        puller.add_done_callback(lambda _: seen_early.append(not returned))
        await bench.hosted.advance(items(FAILED, first))
        returned = True
        assert bench.numbers(await puller) == [5]
        assert seen_early == [False]


async def test_r15_a_call_that_failed_gives_the_same_back_again() -> None:
    """R13, R15: the retry of a broken-off run has what the first try took out of the bridge."""
    async with hosting() as bench:
        bench.feed(events("p0", 5))
        first = await bench.pull()
        bench.feed(events("p0", 6))
        await bench.settled_there()

        def refuse() -> None:
            bench.inner.on_advance = lambda: None
            raise SourceUnavailable("away")

        bench.inner.on_advance = refuse
        with pytest.raises(SourceUnavailable):
            await bench.hosted.advance(items(FAILED, first))
        bench.feed(events("p0", 7))
        await bench.settled_there()
        await bench.hosted.advance(items(FAILED, first))
        assert [[payload[1] for payload, _ in call] for call in bench.inner.advanced] == [[5, 6], [5, 6, 7]]


async def test_r15_a_call_that_only_ends_the_old_run_leaves_the_new_one_alone() -> None:
    """R15: what the engine held of the old run when the lane started again breaks nothing off: of the new run a part may be
    with the engine already, and a producer that is given the rest back would forget that part."""
    async with hosting() as bench:
        bench.feed(events("p0", 5))
        first = await bench.pull()
        bench.feed(events("p0", 6))
        rest = await bench.pull()
        assert isinstance(rest, EventBatch)
        await bench.hosted.advance(items(FAILED, first))
        bench.feed(events("p0", 5))
        assert bench.numbers(await bench.pull()) == [5]
        bench.feed(events("p0", 6))
        await bench.settled_there()
        await bench.hosted.advance(AdvanceBatch(rest.payloads, [FAILED], is_stale=True))
        assert bench.inner.advanced[1:] == [[(("p0", 6), FAILED)]]
        assert bench.numbers(await bench.pull()) == [6]


@pytest.mark.parametrize(("ordered", "lane"), [(False, "p0"), (True, UNORDERED)])
async def test_r15_concerns_ordered_lanes_only(ordered: bool, lane: Hashable) -> None:
    """R15: where nothing is ordered, a failure leaves what waits alone."""
    async with hosting(capabilities=Capabilities(ordered=ordered)) as bench:
        bench.feed(events(lane, 5))
        first = await bench.pull()
        bench.feed(events(lane, 6))
        await bench.settled_there()
        await bench.hosted.advance(items(FAILED, first))
        assert bench.numbers(await bench.pull()) == [6]


async def test_k4_a_lost_lane_drops_what_waits_of_it() -> None:
    """K4: events of a lost lane never reach the engine; its new life does, after the news of the loss."""
    async with hosting() as bench:
        bench.feed(events("p0", 1, 2), events("p1", 1), LaneLost("p0"), events("p0", 2))
        bench.hosted._thread.call_soon(bench.hosted._start_pump)
        await bench.settled_there()
        bench.hosted._start_pump = lambda: None  # type: ignore[method-assign]  # it runs already
        assert await bench.pull() == LaneLost("p0")
        batch = await bench.pull()
        assert isinstance(batch, EventBatch)
        assert [carried.payload for carried in batch.payloads] == [("p1", 1), ("p0", 2)]


async def test_k4_a_lane_lost_during_its_breaking_off_is_not_held() -> None:
    """K4, R15: a lane that is lost and comes back while a call of its old life runs starts its new life at once."""
    async with hosting() as bench:
        bench.feed(events("p0", 5))
        first = await bench.pull()
        started = asyncio.Event()
        engine = asyncio.get_running_loop()

        async def slow() -> None:
            engine.call_soon_threadsafe(started.set)
            await asyncio.sleep(30)

        bench.inner.on_advance = slow
        call = asyncio.ensure_future(bench.hosted.advance(items(FAILED, first)))
        await started.wait()
        bench.feed(LaneLost("p0"), events("p0", 5))
        assert await bench.pull() == LaneLost("p0")
        assert bench.numbers(await bench.pull()) == [5]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_r17_the_generator_is_not_pulled_when_the_bridge_is_full() -> None:
    """R17: at most the bound and one batch wait between the threads."""
    async with hosting(max_events=4) as bench:
        bench.feed(*[events("p0", n, n + 1) for n in range(0, 20, 2)])
        batch = await bench.pull()
        await bench.settled_there()
        assert bench.hosted._bridge.events <= 4
        assert bench.inner.pulls <= 4
        seen = bench.numbers(batch)
        while len(seen) < 20:
            seen += bench.numbers(await bench.pull())
        assert seen == list(range(20))


async def test_r17_bytes_bound_it_too() -> None:
    """R17: the bridge is bounded in bytes; one batch always enters."""
    async with hosting(max_bytes=100) as bench:
        bench.feed(*[[(b"x" * 200, ("p0", n))] for n in range(3)])
        for n in range(3):
            await bench.settled_there()
            assert bench.hosted._bridge.events <= 1
            assert bench.numbers(await bench.pull()) == [n]


async def test_small_batches_that_wait_cross_as_one() -> None:
    """A producer that yields single events costs the engine one wake for all that wait."""
    async with hosting() as bench:
        bench.feed(*[events("p0", n) for n in range(100)])
        first = bench.numbers(await bench.pull())
        await bench.settled_there()
        rest = bench.numbers(await bench.pull()) if len(first) < 100 else []
        assert first + rest == list(range(100))


async def test_r17_pause_and_resume_are_called_on_the_producers_loop() -> None:
    """R17: pausing all keeps back what waits in the bridge, and reaches the producer; a lost lane still gets through."""
    async with hosting() as bench:
        bench.feed(events("p0", 1))
        await bench.pull()
        bench.hosted.pause()
        bench.feed(events("p0", 2), LaneLost("p1"))
        assert await bench.pull() == LaneLost("p1")
        waiting = asyncio.ensure_future(bench.pull())
        await bench.settled_there()
        assert not waiting.done()
        bench.hosted.pause("p0")
        bench.hosted.resume("p0")
        bench.hosted.resume()
        assert bench.numbers(await waiting) == [2]
        await bench.settled_there()
        assert bench.inner.steered == [("pause", None), ("pause", "p0"), ("resume", "p0"), ("resume", None)]


async def test_a_raising_pause_ends_the_poll() -> None:
    """What `pause` raises is the stream's error."""
    async with hosting() as bench:

        def broken(lane: Hashable | None = None) -> None:
            raise ValueError("no such lane")

        bench.inner.pause = broken  # type: ignore[method-assign]
        bench.hosted.pause("p9")
        with pytest.raises(ValueError, match="no such lane"):
            await bench.pull()


async def test_r4_the_producers_own_error_crosses_unchanged_and_last() -> None:
    """R4: an error of the generator comes after the batches before it, as the object it is."""
    async with hosting() as bench:
        error = SourceMisconfigured("no such topic")
        bench.feed(events("p0", 1), error)
        assert bench.numbers(await bench.pull()) == [1]
        with pytest.raises(SourceMisconfigured) as caught:
            await bench.pull()
        assert caught.value is error


async def test_r4_a_generator_that_returns_ends_the_poll() -> None:
    """R4: the hosted generator returns when the producer's does; the engine calls that an error."""
    async with hosting() as bench:
        bench.feed(None)
        with pytest.raises(StopAsyncIteration):
            await bench.pull()


async def test_r12_an_unhashable_lane_ends_the_poll() -> None:
    """R12: a lane that cannot be hashed is the poll's error."""
    async with hosting() as bench:
        bench.feed(events([], 1))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="hashable"):
            await bench.pull()


async def test_a_producer_that_asks_for_an_exit_fails_alone() -> None:
    """`sys.exit` in a producer ends its stream, not the process."""
    async with hosting() as bench:
        bench.feed(SystemExit(3))
        with pytest.raises(RuntimeError, match="asked the process to exit"):
            await bench.pull()


async def test_r13_cancelling_advance_cancels_it_in_the_thread() -> None:
    """R13: a call past its deadline is cancelled where it runs, and has ended when the caller knows."""
    async with hosting() as bench:
        bench.feed(events("p0", 1))
        batch = await bench.pull()
        cancelled: list[bool] = []

        async def hang() -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        bench.inner.on_advance = hang
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await bench.hosted.advance(items(ACKED, batch))
        assert cancelled == [True]


async def test_r12_a_call_waits_for_one_that_outlives_its_cancellation() -> None:
    """R12: the next call of a lane waits in the thread for the one before it, whatever became of its caller."""
    async with hosting() as bench:
        bench.feed(events("p0", 1), events("p0", 2))
        batch = await bench.pull()
        order: list[str] = []

        async def stubborn() -> None:
            bench.inner.on_advance = lambda: order.append("second")
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                await asyncio.sleep(1.2)
                order.append("first ended")

        bench.inner.on_advance = stubborn
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await bench.hosted.advance(items(ACKED, batch))
        await bench.hosted.advance(items(ACKED, batch))
        assert order == ["first ended", "second"]


async def test_r13_errors_of_advance_cross_unchanged() -> None:
    """R13: the engine sees the very error that `advance` raised."""
    async with hosting() as bench:
        bench.feed(events("p0", 1))
        batch = await bench.pull()
        error = SourceUnavailable("busy")

        def refuse() -> None:
            raise error

        bench.inner.on_advance = refuse
        with pytest.raises(SourceUnavailable) as caught:
            await bench.hosted.advance(items(ACKED, batch))
        assert caught.value is error


async def test_rejections_are_recorded_before_the_producer_hears_of_them() -> None:
    """Before `advance` hears of a rejection the runner gets it with its raw event: once, also over a retry of the call."""
    order: list[Any] = []

    async def record(rejected: Sequence[AdvanceItem]) -> None:
        order.append([item.broker_payload.raw for item in rejected])

    async with hosting(before_settle=record) as bench:
        bench.feed(events("p0", 1, 2))
        batch = await bench.pull()
        assert isinstance(batch, EventBatch)
        call = [AdvanceItem(batch.payloads[0], ACKED), AdvanceItem(batch.payloads[1], REJECTED)]

        def refuse() -> None:
            bench.inner.on_advance = lambda: order.append("advanced")
            raise SourceUnavailable("away")

        bench.inner.on_advance = refuse
        with pytest.raises(SourceUnavailable):
            await bench.hosted.advance(call)
        await bench.hosted.advance(call)
        assert order == [[b"2"], "advanced"]


async def test_a_rejection_that_could_not_be_recorded_is_not_advanced() -> None:
    """No dead letter, no settlement."""

    async def fail(rejected: Sequence[AdvanceItem]) -> None:
        raise SourceUnavailable("the store is away")

    async with hosting(before_settle=fail) as bench:
        bench.feed(events("p0", 1))
        batch = await bench.pull()
        with pytest.raises(SourceUnavailable):
            await bench.hosted.advance(items(REJECTED, batch))
        assert bench.inner.advanced == []


async def test_what_the_factory_raises_escapes() -> None:
    """R1: a factory that raises leaves nothing behind, not even its thread."""

    def broken() -> SharedStreamProducer:
        raise SourceMisconfigured("no bootstrap_servers")

    with pytest.raises(SourceMisconfigured):
        HostedProducer(broken, name="broken-factory")
    deadline = time.monotonic() + 5
    while any(thread.name == "producer:broken-factory" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_closing_is_bounded_and_names_what_hangs(caplog: pytest.LogCaptureFixture) -> None:
    """R13: a producer that hangs in `aclose` does not hang us: it is reported, and its thread is left behind."""
    release = threading.Event()

    class Stuck(Scripted):
        async def aclose(self) -> None:
            release.wait(20)

    hosted = HostedProducer(Stuck, name="stuck", close_timeout=0.05)
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"stuck: not closed within 0.05 s, thread left behind at .*threading.py"):
        await hosted.aclose()
    assert time.monotonic() - started < 5
    release.set()


async def test_closing_raises_what_the_producer_raises() -> None:
    """An error of the producer's own `aclose` escapes, and its thread ends all the same."""
    threads: list[threading.Thread] = []

    class Broken(Scripted):
        async def aclose(self) -> None:
            threads.append(threading.current_thread())
            raise ValueError("cannot close")

    with pytest.raises(ValueError, match="cannot close"):
        await HostedProducer(Broken, name="orders").aclose()
    await asyncio.to_thread(threads[0].join, 5)
    assert not threads[0].is_alive()


async def test_stats_are_asked_in_the_producers_thread() -> None:
    """A producer's `stats()`, plain or async, is called where the producer lives; one without has none."""

    class Plain(Scripted):
        def stats(self) -> dict[str, Any]:
            return {"same thread": threading.current_thread() is self.thread}

    class Async(Scripted):
        async def stats(self) -> dict[str, Any]:
            return {"same thread": threading.current_thread() is self.thread}

    told = []
    for kind in (Plain, Async, Scripted):
        hosted = HostedProducer(kind, name="orders")
        told.append(await hosted.stats())
        await hosted.aclose()
    assert told == [{"same thread": True}, {"same thread": True}, {}]


async def test_closing_ends_the_poll_first(caplog: pytest.LogCaptureFixture) -> None:
    """The producer's generator has ended when its `aclose` is called; an error of that ending is logged."""
    order: list[str] = []

    class Tidy(Scripted):
        async def open_batches(self) -> AsyncIterator[Any]:
            try:
                yield events("p0", 1)
                await asyncio.sleep(30)
            finally:
                order.append("poll ended")
                raise ValueError("in the poll's finally")

        async def aclose(self) -> None:
            order.append("closed")

    hosted = HostedProducer(Tidy, name="tidy")
    batches = hosted.open_batches()
    await anext(batches)
    with caplog.at_level(logging.WARNING):
        await hosted.aclose()
    await batches.aclose()
    assert order == ["poll ended", "closed"]
    assert "in the poll's finally" in caplog.text
