"""R16 and R17: a slow subscriber pays for itself, and what is in flight is bounded in events and bytes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from headrace import UNORDERED, SharedStreamManager, SubscriberOverflow
from headrace.testing.virtual_time import in_virtual_time
from tests.unit.streams.harness import KEY, Filter, Source, trigger_of, turns


@in_virtual_time
async def test_r16_the_reader_waits_for_a_full_subscriber_within_its_grace() -> None:
    """R16: nobody fails, nothing is lost, while the slow one needs less than the grace in 60 s."""
    manager, source = SharedStreamManager(max_subscriber_queue=5, overflow_grace=5), Source()
    quick = Filter(manager, source, "quick")
    slow = Filter(manager, source, "slow", lambda event: asyncio.sleep(0.2))
    source.feed(*range(20))
    await asyncio.sleep(10)
    assert quick.seen == slow.seen == list(range(20))
    assert slow.errors == []
    assert source.counts == dict.fromkeys(range(20), (2, 0, 0))
    await manager.stop_all()


@in_virtual_time
async def test_r16_who_costs_the_stream_more_than_its_grace_fails_alone() -> None:
    """R16, X9: a subscriber that stops pulling fails after the grace; the sibling goes on with all events."""
    manager, source = SharedStreamManager(max_subscriber_queue=5, overflow_grace=5), Source()
    quick = Filter(manager, source, "quick")
    stuck = Filter(manager, source, "stuck", lambda event: asyncio.sleep(1000))
    source.feed(*range(20))
    await asyncio.sleep(4.9)
    assert stuck.errors == []
    await asyncio.sleep(0.2)
    assert isinstance(stuck.errors[0], SubscriberOverflow)
    await turns()
    assert quick.seen == list(range(20))
    failed = [event for event, counts in source.counts.items() if counts[1]]
    assert failed == list(range(7)), "in hand, five in the queue, and the one that did not fit"
    assert source.counts[19] == (1, 0, 0)
    await manager.stop_all()


@in_virtual_time
async def test_r16_pulling_for_ever_at_a_tenth_of_the_pace_fails_too() -> None:
    """R16, X9: the waiting is added up over 60 s, so that slow pulls do not buy new grace."""
    manager, source = SharedStreamManager(max_subscriber_queue=5, overflow_grace=5), Source()
    quick = Filter(manager, source, "quick")
    slow = Filter(manager, source, "slow", lambda event: asyncio.sleep(1))
    source.feed(*range(100))
    await asyncio.sleep(20)
    assert isinstance(slow.errors[0], SubscriberOverflow)
    assert len(quick.seen) == 100
    await manager.stop_all()


@in_virtual_time
async def test_r16_of_several_that_are_full_each_pays() -> None:
    """R16: two stuck ones fail together, after one grace, not two."""
    manager, source = SharedStreamManager(max_subscriber_queue=2, overflow_grace=5), Source()
    quick = Filter(manager, source, "quick")
    stuck = [Filter(manager, source, name, lambda event: asyncio.sleep(1000)) for name in ("x", "y")]
    source.feed(*range(10))
    await asyncio.sleep(5.1)
    assert all(isinstance(each.errors[0], SubscriberOverflow) for each in stuck)
    assert len(quick.seen) == 10
    await manager.stop_all()


@in_virtual_time
async def test_r16_who_has_grace_left_gets_no_event_too_many_because_another_fails() -> None:
    """R16: of two that are full one has used up its grace: the event that did not fit waits for the other."""
    manager, source = SharedStreamManager(max_subscriber_queue=2, overflow_grace=5), Source()
    quick = Filter(manager, source, "quick")
    costly = Filter(manager, source, "costly", lambda event: asyncio.sleep({0: 4, 10: 1000}.get(event, 0)))
    stuck = Filter(manager, source, "stuck", lambda event: asyncio.sleep(1000 if event == 10 else 0))
    source.feed(0, 1, 2, 3)
    await asyncio.sleep(5)
    source.feed(10, 11, 12, 13)
    await asyncio.sleep(2)
    assert (len(costly.errors), len(stuck.errors)) == (1, 0)
    assert quick.seen == [0, 1, 2, 3, 10, 11, 12]
    await asyncio.sleep(4)
    assert isinstance(stuck.errors[0], SubscriberOverflow)
    assert quick.seen[-1] == 13
    await manager.stop_all()


@in_virtual_time
async def test_r16_grace_0_fails_a_full_subscriber_after_one_turn() -> None:
    """R16: Airflow's behaviour: the event that does not fit counts as failed for it."""
    manager, source = SharedStreamManager(max_subscriber_queue=2, overflow_grace=0), Source()
    quick = Filter(manager, source, "quick")
    idle = manager.subscribe(trigger_id="idle", trigger=trigger_of(source), key=KEY)
    for event in range(4):
        source.feed(event)
    await turns()
    assert quick.seen == [0, 1, 2, 3]
    assert source.counts == {0: (1, 1, 0), 1: (1, 1, 0), 2: (1, 1, 0), 3: (1, 0, 0)}
    with pytest.raises(SubscriberOverflow):
        await anext(idle)
    await manager.stop_all()


@in_virtual_time
async def test_r16_an_indexed_subscriber_has_a_queue_of_its_own() -> None:
    """R16, trap: only what matches fills it; who has room for what comes does not wait for it."""
    manager, source = SharedStreamManager(max_subscriber_queue=2, overflow_grace=5), Source()
    stuck = Filter(manager, source, "stuck", lambda event: asyncio.sleep(1000), match={"n": [1]})
    other = Filter(manager, source, "other", match={"n": [2]})
    for n in (1, 1, 1, 2, 2):
        source.feed({"n": n})
    await turns()
    assert (len(stuck.seen), len(other.seen)) == (1, 2)
    source.feed({"n": 1}, {"n": 2})
    await asyncio.sleep(5.5)
    assert isinstance(stuck.errors[0], SubscriberOverflow)
    assert len(other.seen) == 3
    await manager.stop_all()


@in_virtual_time
async def test_r17_reading_stops_at_the_bound_in_events_with_the_source_paused() -> None:
    """R17: batches are split at the bound, the source is paused meanwhile and resumed after."""
    manager, source = SharedStreamManager(max_in_flight=10), Source()
    watching = Filter(manager, source, "a", lambda event: event)
    source.feed(*range(25), lane=UNORDERED)
    await turns()
    assert watching.seen == list(range(10))
    assert source.pauses == [("pause", None)]
    watching.confirm(*range(10))
    await turns(60)
    assert watching.seen == list(range(20))
    watching.confirm(*range(10, 20))
    await turns(60)
    watching.confirm(*range(20, 25))
    await turns()
    assert source.counts == dict.fromkeys(range(25), (1, 0, 0))
    assert source.pauses[-1] == ("resume", None)
    await manager.stop_all()


@in_virtual_time
async def test_r17_reading_stops_at_the_bound_in_bytes_and_one_event_always_enters() -> None:
    """R17: raw events count by their length, and one larger than the bound enters an empty stream."""
    manager, source = SharedStreamManager(max_in_flight_bytes=1000), Source()
    watching = Filter(manager, source, "a", lambda event: event)
    source.feed(b"a" * 5000, b"b" * 400, b"c" * 400, b"d" * 400, lane=UNORDERED)
    await turns()
    assert [len(event) for event in watching.seen] == [5000]
    watching.confirm(b"a" * 5000)
    await turns(60)
    assert [len(event) for event in watching.seen] == [5000, 400, 400]
    watching.confirm(b"b" * 400)
    await turns(60)
    assert len(watching.seen) == 4
    stream = manager.stream(KEY)
    assert stream is not None
    assert stream.ledger.in_flight_bytes == 802, "two events and two derived ones of 1 byte"
    await manager.stop_all()


@in_virtual_time
async def test_r17_derived_events_count_until_they_are_stored() -> None:
    """R17: `bind_pending_event(size=)` counts against the bound in bytes."""
    manager, source = SharedStreamManager(max_in_flight_bytes=1000), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed(b"x", b"y" * 500)
    assert await anext(stream) == b"x"
    write = manager.bind_pending_event(trigger_id="a", key=KEY, size=900)
    assert write is not None
    ledger = manager.stream(KEY).ledger  # type: ignore[union-attr]
    assert ledger.in_flight_bytes == 1401
    source.feed(b"z")
    await anext(stream)
    asking = asyncio.create_task(anext(stream))
    await turns()
    assert not asking.done()
    manager.confirm_persisted([write])
    await turns(60)
    assert asking.result() == b"z"
    await manager.stop_all()
    del ledger


@in_virtual_time
async def test_r17_a_lane_that_holds_half_is_paused_alone() -> None:
    """R17: the other lanes go on; the lane goes on when it has settled."""
    manager, source = SharedStreamManager(max_in_flight=10), Source()
    watching = Filter(manager, source, "a", lambda event: event if str(event).startswith("x") else None)
    source.feed(*[f"x{n}" for n in range(5)], lane="x")
    source.feed("y0", lane="y")
    await turns()
    assert source.pauses == [("pause", "x")]
    assert list(source.counts) == ["y0"]
    watching.confirm(*[f"x{n}" for n in range(5)])
    await turns()
    assert source.pauses == [("pause", "x"), ("resume", "x")]
    await manager.stop_all()


@in_virtual_time
async def test_r17_settling_frees_an_events_raw_and_payload_at_once() -> None:
    """R17, trap: one stuck event does not keep its segment's other raw events alive."""

    class Raw:
        pass

    manager, source = SharedStreamManager(), Source()
    stuck: list[Any] = []

    def hold(event: Any) -> Any:
        if not stuck:
            stuck.append(weakref.ref(event))
            return "held"
        return None

    watching = Filter(manager, source, "a", hold)
    raws = [Raw() for _ in range(5)]
    references = [weakref.ref(raw) for raw in raws]
    source.batches.put_nowait([(raw, (UNORDERED, str(n))) for n, raw in enumerate(raws)])
    del raws
    await turns()
    watching.seen.clear()
    source.feed("next", lane=UNORDERED)
    await turns()
    gc.collect()
    assert [reference() is None for reference in references] == [False, True, True, True, True]
    watching.confirm("held")
    await turns()
    gc.collect()
    assert references[0]() is None
    await manager.stop_all()


@in_virtual_time
async def test_a_failed_subscriber_keeps_no_backlog_alive() -> None:
    """R9: a hung subscriber that failed does not keep what came after it in memory."""

    class Raw:
        pass

    manager, source = SharedStreamManager(ack_timeout=10), Source()
    Filter(manager, source, "good").seen = _Forgetful()
    hung = Filter(manager, source, "hung", lambda event: asyncio.sleep(10_000))
    source.feed(0)
    await turns()
    raws = [Raw() for _ in range(50)]
    references = [weakref.ref(raw) for raw in raws]
    source.batches.put_nowait([(raw, (UNORDERED, str(n))) for n, raw in enumerate(raws)])
    del raws
    await asyncio.sleep(15)
    assert hung.errors
    source.calls.clear()
    source.feed(1)
    await turns()
    gc.collect()
    assert sum(reference() is not None for reference in references) == 0
    await manager.stop_all()


class _Forgetful(list[Any]):
    def append(self, item: Any) -> None:
        pass
