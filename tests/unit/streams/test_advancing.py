"""R12 to R15: how the broker is told: in order within a lane, lane by lane, within deadlines, and what a failure does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace import UNORDERED, AdvanceItem, SharedStreamManager, SourceUnavailable, StreamEnded, reject_shared_stream_event
from headrace.testing.virtual_time import in_virtual_time
from tests.unit.streams.harness import KEY, Filter, Source, trigger_of, turns


def raising(error: Exception) -> Any:
    def trouble(batch: Sequence[AdvanceItem]) -> None:
        raise error

    return trouble


@in_virtual_time
async def test_r12_a_lane_advances_its_contiguous_resolved_prefix_only() -> None:
    """R12: what is resolved behind an unresolved event waits and then goes in one call, in fan-out order."""
    manager, source = SharedStreamManager(), Source()
    watching = Filter(manager, source, "a", lambda event: event if event in (1, 4) else None)
    source.feed(0, 1, 2)
    source.feed(3, 4, 5)
    await turns()
    assert [[item.broker_payload[1] for item in call] for call in source.calls] == [[0]]
    watching.confirm(4)
    await turns()
    assert list(source.counts) == [0]
    watching.confirm(1)
    await turns()
    assert [[item.broker_payload[1] for item in call] for call in source.calls] == [[0], [1, 2, 3, 4, 5]]
    await manager.stop_all()


@in_virtual_time
async def test_r12_lanes_do_not_wait_for_each_other() -> None:
    """R12: a lane whose head is unresolved holds only itself, also within a mixed batch."""
    manager, source = SharedStreamManager(), Source()
    watching = Filter(manager, source, "a", lambda event: event if event == "x1" else None)
    source.feed_mixed(("x", "x1"), ("y", "y1"), ("x", "x2"), ("y", "y2"))
    await turns()
    assert list(source.counts) == ["y1", "y2"]
    watching.confirm("x1")
    await turns()
    assert list(source.counts) == ["y1", "y2", "x1", "x2"]
    assert all(len({item.broker_payload[0] for item in call}) == 1 for call in source.calls)
    await manager.stop_all()


@in_virtual_time
async def test_r12_the_next_batch_of_a_lane_waits_for_the_call_before_it() -> None:
    """R12: with parallel calls allowed, other lanes go on meanwhile."""
    manager, source = SharedStreamManager(max_parallel_advances=4), Source(parallel=8)
    gate = asyncio.Event()
    source.trouble.append(lambda batch: gate.wait())
    Filter(manager, source, "a")
    source.feed("x1", lane="x")
    await turns()
    source.feed("x2", lane="x")
    source.feed("y1", lane="y")
    await turns()
    assert list(source.counts) == ["y1"]
    gate.set()
    await turns()
    assert list(source.counts) == ["y1", "x1", "x2"]
    await manager.stop_all()


@pytest.mark.parametrize(("ours", "theirs", "at_once"), [(1, 8, 1), (3, 8, 3), (8, 2, 2)])
@in_virtual_time
async def test_r12_calls_in_flight_are_bounded_by_the_manager_and_the_producer(ours: int, theirs: int, at_once: int) -> None:
    """R12: at most min(manager's, producer's) `advance` calls at once, 1 by default."""
    manager, source = SharedStreamManager(max_parallel_advances=ours), Source(parallel=theirs)
    running = peak = 0

    async def count() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(1)
        running -= 1

    for _ in range(10):
        source.trouble.append(lambda batch: count())
    Filter(manager, source, "a")
    source.feed_mixed(*((lane, lane) for lane in range(10)))
    await asyncio.sleep(20)
    assert len(source.counts) == 10
    assert peak == at_once
    await manager.stop_all()


@in_virtual_time
async def test_r12_unordered_events_settle_one_by_one() -> None:
    """R12, trap: stragglers of UNORDERED ship when they are ready, many in one call."""
    manager, source = SharedStreamManager(), Source()
    watching = Filter(manager, source, "a", lambda event: event if event in (1, 3) else None)
    source.feed(0, 1, 2, 3, 4, lane=UNORDERED)
    await turns()
    assert [[item.broker_payload[1] for item in call] for call in source.calls] == [[0, 2, 4]]
    watching.confirm(3)
    await turns()
    watching.confirm(1)
    await turns()
    assert list(source.counts) == [0, 2, 4, 3, 1]
    assert set(source.counts.values()) == {(1, 0, 0)}
    await manager.stop_all()


@pytest.mark.parametrize("lane", ["raises", "unhashable"])
@in_virtual_time
async def test_r12_a_lane_that_raises_or_cannot_be_hashed_fails_the_poll(lane: str) -> None:
    """R12, R4: every subscriber gets the error; the source is closed once."""
    manager, source = SharedStreamManager(), Source()

    def bad_lane(payload: Any) -> Any:
        if lane == "raises":
            raise ValueError("no lane")
        return []

    type(source).get_advance_lane, before = bad_lane_method(bad_lane), type(source).get_advance_lane  # type: ignore[method-assign]
    try:
        stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
        source.feed(1)
        with pytest.raises(ValueError if lane == "raises" else TypeError):
            await anext(stream)
        await turns()
    finally:
        type(source).get_advance_lane = before  # type: ignore[method-assign]
    assert source.closed == 1


def bad_lane_method(function: Any) -> Any:
    return lambda self, payload: function(payload)


@in_virtual_time
async def test_r13_an_unavailable_source_is_tried_again_with_the_same_items() -> None:
    """R13, X7: with backoff, on that lane alone; what came meanwhile goes after it."""
    manager, source = SharedStreamManager(), Source()
    tried: list[list[Any]] = []

    def unavailable(batch: Sequence[AdvanceItem]) -> None:
        tried.append([item.broker_payload[1] for item in batch])
        raise SourceUnavailable("away")

    source.trouble.extend([unavailable] * 3)
    Filter(manager, source, "a")
    source.feed("x1", lane="x")
    await turns()
    source.feed("x2", lane="x")
    source.trouble.appendleft(lambda batch: None)
    source.feed("y1", lane="y")
    await turns()
    assert list(source.counts) == ["y1"]
    await asyncio.sleep(5)
    assert tried == [["x1"]] * 3
    assert list(source.counts) == ["y1", "x1", "x2"]
    await manager.stop_all()


@in_virtual_time
async def test_r13_a_call_past_its_deadline_is_cancelled_and_tried_again() -> None:
    """R13: a hanging advance costs its lane the deadline and a backoff."""
    manager, source = SharedStreamManager(advance_timeout=5), Source()
    cancelled = []

    async def hang() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(asyncio.get_running_loop().time())
            raise

    source.trouble.append(lambda batch: hang())
    Filter(manager, source, "a")
    source.feed(1)
    await asyncio.sleep(4.9)
    assert cancelled == []
    await asyncio.sleep(0.4)
    assert cancelled == [pytest.approx(5)]
    assert source.counts == {1: (1, 0, 0)}
    await manager.stop_all()


@pytest.mark.parametrize("error", [RuntimeError("cannot"), TimeoutError("its own"), SourceUnavailable("away for good")])
@in_virtual_time
async def test_r13_any_other_error_or_the_last_retry_ends_the_stream(error: Exception) -> None:
    """R13: every subscriber gets the producer's own error, nothing more is advanced, the producer is closed once."""
    manager, source = SharedStreamManager(advance_retries=3), Source()
    tries = 0

    def fail(batch: Sequence[AdvanceItem]) -> None:
        nonlocal tries
        tries += 1
        raise error

    source.trouble.extend([fail] * 20)
    one, other = Filter(manager, source, "a"), Filter(manager, source, "b")
    source.feed(1, lane="x")
    source.feed(2, lane="y")
    await asyncio.sleep(60)
    assert one.errors == other.errors == [error]
    for watching in (one, other):
        with pytest.raises(type(error)):
            await watching.task
    assert source.calls == []
    assert (source.closed, manager.stream(KEY)) == (1, None)
    if not isinstance(error, SourceUnavailable):
        assert tries == 1


@in_virtual_time
async def test_r14_a_stop_advances_what_is_resolved_and_leaves_the_rest() -> None:
    """R14: no new events, nothing unresolved is told, the producer is closed once."""
    manager, source = SharedStreamManager(), Source()
    gate = asyncio.Event()
    source.trouble.append(lambda batch: gate.wait())
    Filter(manager, source, "a", lambda event: event if event == 4 else None)
    source.feed(1)
    await turns()
    source.feed(2, 3, 4, 5)
    await turns()
    stopping = asyncio.create_task(manager.stop_all())
    await turns()
    source.feed(6)
    gate.set()
    await stopping
    assert list(source.counts) == [1, 2, 3]
    assert source.closed == 1


@in_virtual_time
async def test_r14_nothing_is_fanned_out_after_the_end() -> None:
    """R14: not even what the reader holds back for an absent subscriber, when something settles while the stream closes."""
    manager, source = SharedStreamManager(cohort_grace_period=30), Source()
    gate = asyncio.Event()
    source.trouble.append(lambda batch: gate.wait())
    Filter(manager, source, "a", expected={"a", "b"})
    other = Filter(manager, source, "b", expected={"a", "b"})
    source.feed(1)
    await turns()
    stream = manager.stream(KEY)
    assert stream is not None
    await other.leave(abandon=True)
    source.feed(2)
    await turns()
    stopping = asyncio.create_task(manager.stop_all())
    await turns()
    gate.set()
    await stopping
    assert stream.ledger.next_seq == 1
    assert source.counts == {1: (2, 0, 0)}


@in_virtual_time
async def test_r14_a_stop_takes_no_longer_than_its_deadlines_and_retries_nothing() -> None:
    """R14: at most advance_timeout + close_timeout, with an advance and an aclose that both hang."""
    manager, source = SharedStreamManager(advance_timeout=5, close_timeout=3), Source()
    source.trouble.append(lambda batch: asyncio.sleep(1000))
    source.aclose = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    Filter(manager, source, "a")
    source.feed(1)
    await asyncio.sleep(1)
    started = asyncio.get_running_loop().time()
    await manager.stop_all()
    assert asyncio.get_running_loop().time() - started <= 8
    assert source.calls == []


@in_virtual_time
async def test_r14_a_lane_in_backoff_is_not_retried_by_a_stop() -> None:
    """R14: what waits for its retry is left to redelivery."""
    manager, source = SharedStreamManager(), Source()
    source.trouble.append(raising(SourceUnavailable("away")))
    Filter(manager, source, "a")
    source.feed(1)
    await turns()
    await manager.stop_all()
    assert (source.calls, source.closed) == ([], 1)


@in_virtual_time
async def test_r14_a_cancelled_stop_is_still_a_cancellation() -> None:
    """R14: who stops may be cancelled; the stream closes all the same."""
    manager, source = SharedStreamManager(), Source()
    gate = asyncio.Event()
    source.aclose = gate.wait  # type: ignore[method-assign,assignment]
    watching = Filter(manager, source, "a")
    await turns()
    stream = manager.stream(KEY)
    assert stream is not None
    stopping = asyncio.create_task(manager.stop_all())
    await turns()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    gate.set()
    await stream.closed.wait()
    with pytest.raises(StreamEnded):
        await watching.task


@in_virtual_time
async def test_r13_a_source_that_is_away_when_it_is_closed_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """R13: it ended the stream and cannot be told good-bye either: a warning without a traceback, and the stream has ended."""
    manager, source = SharedStreamManager(), Source()

    async def is_away() -> None:
        raise SourceUnavailable("no room on the disk")

    source.aclose = is_away  # type: ignore[method-assign]
    watching = Filter(manager, source, "a")
    source.fail(SourceUnavailable("no room on the disk"))
    with pytest.raises(SourceUnavailable):
        await watching.task
    await turns()
    (record,) = [record for record in caplog.records if "closing the source failed" in record.message]
    assert record.message.endswith("no room on the disk")
    assert record.exc_info is None


@in_virtual_time
async def test_r15_a_failed_event_breaks_its_ordered_lane() -> None:
    """R15: what is behind it leaves as failed for all in the call that carries it, and nobody is offered it any more."""
    manager, source = SharedStreamManager(), Source(ordered=True)
    quick = Filter(manager, source, "quick", lambda event: event if event in ("x2", "x3") else None)
    refused = manager.subscribe(trigger_id="refused", trigger=trigger_of(source), key=KEY)
    source.feed("x1", "x2", "x3", "x4", lane="x")
    source.feed("y1", lane="y")
    assert [await anext(refused), await anext(refused)] == ["x1", "x2"]
    write = manager.bind_pending_event(trigger_id="refused", key=KEY)
    await turns()
    assert quick.seen == ["x1", "x2", "x3", "x4", "y1"]
    assert write is not None
    manager.persist_failed([write])
    assert await anext(refused) == "y1", "x3 and x4 are void"
    await turns()
    assert source.pauses == [("pause", "x")]
    source.feed("x5", lane="x")  # of the old run, read before the producer knew
    await turns()
    assert source.counts == {"x1": (2, 0, 0)}
    quick.confirm("x3")
    quick.confirm("x2")
    await turns()
    assert [[item.broker_payload[1] for item in call] for call in source.calls] == [["x1"], ["x2", "x3", "x4", "x5"]]
    assert source.counts == {"x1": (2, 0, 0), "x2": (1, 1, 0), "x3": (0, 2, 0), "x4": (0, 2, 0), "x5": (0, 2, 0)}
    assert source.pauses == [("pause", "x"), ("resume", "x")]
    source.feed("x2", "x3", lane="x")  # handed out again
    await turns()
    assert quick.seen == ["x1", "x2", "x3", "x4", "y1", "x2", "x3"]
    await manager.stop_all()


@in_virtual_time
async def test_r15_the_first_failed_event_decides_where_the_lane_breaks() -> None:
    """R15: an earlier failure takes a later one and all that was said of it with it."""
    manager, source = SharedStreamManager(), Source(ordered=True)
    a = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    b = manager.subscribe(trigger_id="b", trigger=trigger_of(source), key=KEY)
    source.feed(1, 2, 3, 4, lane="x")
    for _ in range(4):
        await anext(a)
    reject_shared_stream_event("of the fourth")
    for _ in range(3):
        await anext(b)
    of_three = manager.bind_pending_event(trigger_id="b", key=KEY)
    assert of_three is not None
    manager.persist_failed([of_three])
    hand = manager.event_in_hand(trigger_id="a", key=KEY)
    assert hand is not None
    assert hand.void
    await manager.unsubscribe("b", KEY, abandon=True)
    parked = asyncio.create_task(anext(a))
    await turns()
    assert source.counts == {1: (2, 0, 0), 2: (2, 0, 0), 3: (1, 1, 0), 4: (0, 2, 0)}
    parked.cancel()
    await manager.stop_all()


@in_virtual_time
async def test_r15_an_event_of_the_old_run_that_comes_during_the_call_leaves_in_a_call_of_its_own() -> None:
    """R15: when the call returns the lane starts over, and nothing of the old run is offered to anybody."""
    manager, source = SharedStreamManager(), Source(ordered=True)
    gate = asyncio.Event()
    watching = Filter(manager, source, "a", lambda event: event)
    source.feed(1, 2, lane="x")
    await turns()
    source.trouble.append(lambda batch: gate.wait())
    write = watching.writes[1]
    assert write is not None
    manager.persist_failed([write])
    await turns()
    source.feed(3, lane="x")
    await turns()
    assert watching.seen == [1, 2]
    gate.set()
    await turns()
    source.feed(1, 2, 3, lane="x")
    await turns()
    assert watching.seen == [1, 2, 1, 2, 3]
    assert [[(item.broker_payload[1], *tuple(item.outcome)[:2]) for item in call] for call in source.calls] == [
        [(1, 0, 1), (2, 0, 1)],
        [(3, 0, 1)],
    ]
    await manager.stop_all()


@in_virtual_time
async def test_r15_the_rest_of_a_split_batch_is_of_the_old_run() -> None:
    """R15, R17: what the reader still holds of a batch when its lane starts over is not offered, and leaves as failed."""
    manager, source = SharedStreamManager(max_in_flight=2), Source(ordered=True)
    stale: list[bool] = []
    source.trouble.extend([lambda batch: stale.append(batch.is_stale)] * 2)
    watching = Filter(manager, source, "a", lambda event: event)
    source.feed(1, 2, 3, 4, lane="x")
    await turns()
    write = watching.writes[1]
    assert write is not None
    manager.persist_failed([write])
    await turns(60)
    assert stale == [False, True], "the producer's host can tell the call that breaks the run off from what comes of it later"
    source.feed(1, 2, lane="x")
    await turns(60)
    assert watching.seen == [1, 2, 1, 2]
    assert source.counts == dict.fromkeys([1, 2, 3, 4], (0, 1, 0))
    await manager.stop_all()


@in_virtual_time
async def test_r15_an_unordered_producers_lane_does_not_break() -> None:
    """R15: without the capability, and in UNORDERED, a failed event concerns itself alone."""
    manager, source = SharedStreamManager(), Source(ordered=False)
    watching = Filter(manager, source, "a", lambda event: event if event == 2 else None)
    source.feed(1, 2, 3, lane="x")
    await turns()
    write = watching.writes[2]
    assert write is not None
    manager.persist_failed([write])
    await turns()
    assert source.counts == {1: (1, 0, 0), 2: (0, 1, 0), 3: (1, 0, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r15_an_event_that_met_nobody_breaks_its_ordered_lane() -> None:
    """R11, R15: a subscriber that comes then does not see the later event before the earlier one."""
    manager, source = SharedStreamManager(ack_timeout=10), Source(ordered=True)
    hung = Filter(manager, source, "hung", lambda event: asyncio.sleep(1000))
    source.feed(1, lane="y")
    await asyncio.sleep(12)
    assert hung.errors
    gate = asyncio.Event()
    source.trouble.append(lambda batch: gate.wait())
    source.feed(2, lane="x")
    await turns()
    late = Filter(manager, source, "late")
    source.feed(3, lane="x")
    await turns()
    assert late.seen == []
    gate.set()
    await turns()
    source.feed(2, 3, lane="x")
    await turns()
    assert late.seen == [2, 3]
    await manager.stop_all()


@in_virtual_time
async def test_r15_a_lost_lane_leaves_without_outcome_and_its_late_resolution_reaches_nothing() -> None:
    """R15, K4: LaneLost voids what is in flight; the lane's next life is settled by its own events alone."""
    manager, source = SharedStreamManager(), Source(ordered=True)
    watching = Filter(manager, source, "a", lambda event: event)
    source.feed("old 1", "old 2", lane="x")
    await turns()
    old_write = watching.writes["old 1"]
    assert old_write is not None
    source.lose("x")
    await turns()
    stream = manager.stream(KEY)
    assert stream is not None
    assert (stream.ledger.in_flight, stream.ledger.in_flight_bytes) == (0, 0)
    source.feed("new 1", lane="x")
    await turns()
    manager.confirm_persisted([old_write])
    await turns()
    assert source.counts == {}
    watching.confirm("new 1")
    await turns()
    assert source.counts == {"new 1": (1, 0, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r15_a_lost_lane_cancels_its_retries() -> None:
    """R15: a call in backoff is not made for a lane that is gone."""
    manager, source = SharedStreamManager(), Source(ordered=True)
    source.trouble.append(raising(SourceUnavailable("away")))
    Filter(manager, source, "a")
    source.feed(1, lane="x")
    await turns()
    source.lose("x")
    await asyncio.sleep(60)
    assert source.calls == []
    source.feed(2, lane="x")
    await turns()
    assert source.counts == {2: (1, 0, 0)}
    await manager.stop_all()
