"""R1 to R5: who shares a stream, who is in an event's cohort, and when a stream is there to be joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace import (
    AdvanceOutcome,
    BaseEventTrigger,
    SharedStreamManager,
    SharedStreamProducer,
    StreamEnded,
    StreamError,
    reject_shared_stream_event,
)
from headrace.testing.virtual_time import in_virtual_time
from tests.unit.streams.harness import KEY, Filter, Source, trigger_of, turns


@in_virtual_time
async def test_r1_equal_keys_share_one_producer_built_from_the_first_subscribers_kwargs() -> None:
    """R1: triggers whose key is equal share one poll; the factory gets the first one's serialized kwargs."""
    built: list[dict[str, Any]] = []
    source = Source()

    class Watching(BaseEventTrigger):
        def __init__(self, name: str) -> None:
            self.name = name

        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "x", {"name": self.name}

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
            built.append(kwargs)
            return source

    manager = SharedStreamManager()
    streams = [manager.subscribe(trigger_id=name, trigger=Watching(name), key=KEY) for name in "abc"]
    source.feed("event")
    assert [await anext(stream) for stream in streams] == ["event"] * 3
    assert built == [{"name": "a"}]
    assert source.opened == 1
    await manager.stop_all()
    assert source.closed == 1


@in_virtual_time
async def test_r1_a_key_of_none_and_a_second_subscription_are_errors() -> None:
    """R1: key None is a ValueError, the same trigger id twice on a key a RuntimeError; neither leaves anything behind."""
    manager = SharedStreamManager()
    source = Source()
    with pytest.raises(ValueError, match="None"):
        manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=None)
    manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    with pytest.raises(RuntimeError, match="already subscribed"):
        manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    await manager.stop_all()


@in_virtual_time
async def test_r1_a_serialize_that_raises_leaves_nothing_behind() -> None:
    """R1: after a failed first subscription the key is free."""

    class Broken(BaseEventTrigger):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            raise ValueError("cannot be serialized")

        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
            raise AssertionError("never built")

    manager = SharedStreamManager()
    with pytest.raises(ValueError, match="cannot"):
        manager.subscribe(trigger_id="a", trigger=Broken(), key=KEY)
    assert manager.stream(KEY) is None
    source = Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed(1)
    assert await anext(stream) == 1
    await manager.stop_all()


@in_virtual_time
async def test_r2_a_filter_sees_the_same_in_both_modes() -> None:
    """R2: unacknowledged mode shows the same raw events, gates nothing and rejects nothing; open_shared_stream is not needed
    in ack mode."""

    class Plain(BaseEventTrigger):
        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "x", {}

        @classmethod
        async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
            yield {"n": 1}
            yield {"n": 2}
            await asyncio.Event().wait()

    manager = SharedStreamManager()
    stream = manager.subscribe(trigger_id="a", trigger=Plain(), key="plain")
    assert await anext(stream) == {"n": 1}
    assert manager.bind_pending_event(trigger_id="a", key="plain") is None
    hand = manager.event_in_hand(trigger_id="a", key="plain")
    assert hand is not None
    assert not hand.gated
    reject_shared_stream_event("no effect")
    assert await anext(stream) == {"n": 2}

    source = Source()
    gated = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed({"n": 1}, {"n": 2})
    assert [await anext(gated), await anext(gated)] == [{"n": 1}, {"n": 2}]
    assert manager.bind_pending_event(trigger_id="a", key=KEY) is not None
    await manager.stop_all()


@in_virtual_time
async def test_r3_who_joins_later_neither_sees_nor_delays_an_event() -> None:
    """R3, X1: the cohort is the snapshot at fan-out."""
    manager, source = SharedStreamManager(), Source()
    early = Filter(manager, source, "early")
    source.feed(1)
    await turns()
    late = Filter(manager, source, "late")
    source.feed(2)
    await turns()
    assert (early.seen, late.seen) == ([1, 2], [2])
    assert source.counts == {1: (1, 0, 0), 2: (2, 0, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r3_who_failed_is_in_no_later_cohort_until_it_subscribes_again() -> None:
    """R3: after a timeout the others go on alone; a new subscription is in again."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    good = Filter(manager, source, "good")
    slow = Filter(manager, source, "slow", lambda event: asyncio.sleep(1000))
    source.feed(1)
    await asyncio.sleep(20)
    source.feed(2)
    await turns()
    assert source.counts == {1: (1, 1, 0), 2: (1, 0, 0)}
    await slow.leave()
    again = Filter(manager, source, "slow")
    source.feed(3)
    await turns()
    assert again.seen == [3]
    assert source.counts[3] == (2, 0, 0)
    assert good.seen == [1, 2, 3]
    await manager.stop_all()


@in_virtual_time
async def test_r4_the_last_leave_evicts_at_once_and_a_newcomer_waits_for_the_old_source_to_close() -> None:
    """R4: a fresh stream opens its producer only after the old one's aclose returned."""
    manager = SharedStreamManager()
    closing = asyncio.Event()
    old, new = Source(), Source()

    async def slow_close() -> None:
        await closing.wait()

    old.aclose = slow_close  # type: ignore[method-assign]
    first = Filter(manager, old)
    await turns()
    leaving = asyncio.create_task(first.leave())
    await turns()
    assert manager.stream(KEY) is None
    second = Filter(manager, new)
    new.feed(1)
    await asyncio.sleep(1)
    assert (new.opened, second.seen) == (0, [])
    closing.set()
    await leaving
    await turns()
    assert (new.opened, second.seen) == (1, [1])
    await manager.stop_all()


@in_virtual_time
async def test_r4_a_newcomer_waits_no_longer_than_the_old_sources_deadline() -> None:
    """R4: an aclose that hangs is given up after close_timeout."""
    manager = SharedStreamManager(close_timeout=5)
    old, new = Source(), Source()
    old.aclose = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    first = Filter(manager, old)
    await turns()
    started = asyncio.get_running_loop().time()
    leaving = asyncio.create_task(first.leave())
    await turns()
    second = Filter(manager, new)
    new.feed(1)
    await leaving
    assert asyncio.get_running_loop().time() - started == pytest.approx(5)
    await turns()
    assert second.seen == [1]
    await manager.stop_all()


@in_virtual_time
async def test_r4_a_successor_of_a_successor_waits_for_the_first_source_too() -> None:
    """R4: nobody opens a source while any older one of the key is open."""
    manager = SharedStreamManager(close_timeout=5)
    sources = [Source(), Source(), Source()]
    sources[0].aclose = asyncio.Event().wait  # type: ignore[method-assign,assignment]
    first = Filter(manager, sources[0])
    await turns()
    leaving = [asyncio.create_task(first.leave())]
    await turns()
    second = Filter(manager, sources[1])
    await turns()
    leaving.append(asyncio.create_task(second.leave()))
    await turns()
    third = Filter(manager, sources[2])
    sources[2].feed(1)
    await asyncio.sleep(4)
    assert third.seen == []
    await asyncio.gather(*leaving)
    await turns()
    assert third.seen == [1]
    assert sources[1].opened == 0
    await manager.stop_all()


@pytest.mark.parametrize("error", [ValueError("broken"), None])
@in_virtual_time
async def test_r4_a_source_that_raises_or_returns_reaches_every_subscriber(error: Exception | None) -> None:
    """R4, R13: each gets the error, even with a full queue and in the middle of a segment; what was resolved is advanced."""
    manager, source = SharedStreamManager(max_subscriber_queue=4), Source()
    waiting = manager.subscribe(trigger_id="waiting", trigger=trigger_of(source), key=KEY)
    busy = manager.subscribe(trigger_id="busy", trigger=trigger_of(source), key=KEY)
    source.feed(0)
    source.feed(1, 2, 3)
    assert [await anext(waiting) for _ in range(4)] == [0, 1, 2, 3]
    assert [await anext(busy) for _ in range(2)] == [0, 1]
    source.feed(4, 5)
    assert [await anext(waiting) for _ in range(2)] == [4, 5]  # 0 is resolved; four wait for the other, who is full
    parked = asyncio.create_task(anext(waiting))
    source.fail(error)
    await turns()
    assert manager.stream(KEY) is None
    expected = ValueError if error is not None else StreamEnded
    for pull in (parked, anext(busy)):
        with pytest.raises(expected):
            await pull
    await turns()
    assert [event for event, _ in source.settled] == [0]
    assert source.closed == 1


@in_virtual_time
async def test_r4_a_pull_after_leaving_is_an_error() -> None:
    """A subscription that was left gives no more events, also to who waits in it."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    parked = asyncio.create_task(anext(stream))
    await turns()
    await manager.unsubscribe("a", KEY)
    with pytest.raises(StreamError):
        await parked
    with pytest.raises(StreamError):
        await anext(stream)


@in_virtual_time
async def test_r5_without_expected_polling_waits_out_the_grace() -> None:
    """R5: Airflow's grace: who subscribes within it is in the first cohort."""
    manager, source = SharedStreamManager(cohort_grace_period=3), Source()
    source.feed(1)
    Filter(manager, source, "a")
    await asyncio.sleep(2)
    Filter(manager, source, "b")
    assert source.opened == 0
    await asyncio.sleep(2)
    assert source.counts == {1: (2, 0, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r5_with_expected_polling_starts_as_soon_as_all_are_there() -> None:
    """R5: nobody waits out a grace in vain."""
    manager, source = SharedStreamManager(cohort_grace_period=30), Source()
    source.feed(1)
    Filter(manager, source, "a", expected={"a", "b"})
    await asyncio.sleep(2)
    assert source.opened == 0
    Filter(manager, source, "b", expected={"a", "b"})
    await turns()
    assert source.counts == {1: (2, 0, 0)}
    assert asyncio.get_running_loop().time() == 2
    await manager.stop_all()


@in_virtual_time
async def test_r5_events_count_as_failed_for_who_is_expected_and_absent(caplog: pytest.LogCaptureFixture) -> None:
    """R5: after the grace polling starts, says who is missing, and commits nothing past what it has not seen."""
    manager, source = SharedStreamManager(cohort_grace_period=30), Source()
    source.feed(1)
    Filter(manager, source, "a", expected={"a", "gone"})
    await asyncio.sleep(29)
    assert source.opened == 0
    await asyncio.sleep(2)
    assert source.counts == {1: (1, 1, 0)}
    assert "gone" in caplog.text
    await manager.stop_all()


@in_virtual_time
async def test_r5_after_a_failure_the_reader_waits_for_the_restart_up_to_the_grace() -> None:
    """R5: siblings wait for an expected subscriber that failed; when it is back the next event has all of them."""
    manager, source = SharedStreamManager(cohort_grace_period=30, ack_timeout=10), Source()
    good = Filter(manager, source, "good", expected={"good", "bad"})
    bad = Filter(manager, source, "bad", lambda event: asyncio.sleep(1000), expected={"good", "bad"})
    source.feed(1)
    await asyncio.sleep(15)
    assert source.counts == {1: (1, 1, 0)}
    source.feed(2)
    await asyncio.sleep(10)
    assert good.seen == [1]
    bad.task.cancel()
    await manager.unsubscribe("bad", KEY, abandon=True)
    back = Filter(manager, source, "bad", expected={"good", "bad"})
    await turns()
    assert (good.seen, back.seen) == ([1, 2], [2])
    assert source.counts[2] == (2, 0, 0)
    await manager.stop_all()


@in_virtual_time
async def test_r5_who_goes_missing_later_has_a_grace_of_its_own() -> None:
    """R5: one who never comes does not use up the grace of another that fails after it."""
    manager, source = SharedStreamManager(cohort_grace_period=30), Source()
    names = {"good", "bad", "gone"}
    good, bad = Filter(manager, source, "good", expected=names), Filter(manager, source, "bad", expected=names)
    await asyncio.sleep(31)
    source.feed(1)
    await turns()
    await bad.leave(abandon=True)
    source.feed(2)
    await asyncio.sleep(10)
    assert good.seen == [1]
    back = Filter(manager, source, "bad", expected=names)
    await asyncio.sleep(25)
    assert (good.seen, back.seen) == ([1, 2], [2])
    assert source.counts == {1: (2, 1, 0), 2: (2, 1, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r5_the_latest_calls_expected_wins() -> None:
    """R5: who is on an earlier list only is waited for no longer."""
    manager, source = SharedStreamManager(cohort_grace_period=30), Source()
    source.feed(1)
    Filter(manager, source, "a", expected={"a", "b", "removed"})
    await asyncio.sleep(2)
    Filter(manager, source, "b", expected={"a", "b"})
    await turns()
    assert source.counts == {1: (2, 0, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r5_a_plain_unsubscribe_takes_a_name_off_expected_even_one_that_never_came() -> None:
    """R5: a paused or removed trigger holds nothing up."""
    manager, source = SharedStreamManager(cohort_grace_period=30), Source()
    source.feed(1)
    Filter(manager, source, "a", expected={"a", "removed"})
    await asyncio.sleep(1)
    await manager.unsubscribe("removed", KEY)
    await turns()
    assert source.counts == {1: (1, 0, 0)}
    assert source.settled[0][1] == AdvanceOutcome(1, 0)
    await manager.stop_all()
