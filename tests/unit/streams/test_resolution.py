"""R6 to R11: each member of an event's cohort is counted exactly once, and nothing is acked before it is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import AckTimeout, Message, Rejection, SharedStreamManager, StreamError, reject_shared_stream_event
from headrace.testing.virtual_time import in_virtual_time
from tests.unit.streams.harness import KEY, Filter, Source, trigger_of, turns


@in_virtual_time
async def test_r6_asking_for_the_next_event_moves_past_before_it_waits() -> None:
    """R6, X4: an event that a filter skips is resolved as soon as the filter asks for the next, which is not there yet."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed(1)
    assert await anext(stream) == 1
    await turns()
    assert source.counts == {}
    asking = asyncio.create_task(anext(stream))
    await turns()
    assert source.counts == {1: (1, 0, 0)}
    asking.cancel()
    await manager.stop_all()


@in_virtual_time
async def test_r6_in_the_middle_of_a_batch_each_event_resolves_when_it_is_moved_past() -> None:
    """R6: a slow filter does not hold back what it has moved past, nor is anything ahead of it told."""
    manager, source = SharedStreamManager(), Source()
    Filter(manager, source, "slow", lambda event: asyncio.sleep(1))
    Filter(manager, source, "quick")
    source.feed(*range(10))
    for passed in range(1, 10):
        await asyncio.sleep(1)
        await turns()
        assert list(source.counts) == list(range(passed))
    await manager.stop_all()


@in_virtual_time
async def test_r7_acked_means_stored() -> None:
    """R7: an event that derived something waits for its confirmation, and what is behind it in the lane waits too."""
    manager, source = SharedStreamManager(), Source()
    watching = Filter(manager, source, "a", lambda event: f"derived {event}" if event == 2 else None)
    source.feed(1, 2, 3)
    await turns()
    assert list(source.counts) == [1]
    watching.confirm("derived 2")
    await turns()
    assert source.counts == {1: (1, 0, 0), 2: (1, 0, 0), 3: (1, 0, 0)}
    watching.confirm("derived 2")
    manager.confirm_persisted([999])
    await turns()
    assert len(source.settled) == 3
    await manager.stop_all()


@in_virtual_time
async def test_r7_every_derived_event_of_every_subscriber_must_be_stored() -> None:
    """R7, X2: two subscribers, one of them with two derived events: all three confirmations are needed."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    other = Filter(manager, source, "b", lambda event: event)
    source.feed(1, 2)
    await anext(stream)
    writes = [manager.bind_pending_event(trigger_id="a", key=KEY) for _ in range(2)]
    await anext(stream)
    for step in ([writes[0]], [writes[1]]):
        await turns()
        assert source.counts == {}
        manager.confirm_persisted([write for write in step if write is not None])
    await turns()
    assert source.counts == {}
    other.confirm(1)
    await turns()
    assert source.counts == {1: (2, 0, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r8_a_reject_resolves_at_once_and_what_was_yielded_is_forgotten() -> None:
    """R8: no confirmation is waited for; later yields bind to nothing; the event stays in hand, void."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed("bad", "good")
    await anext(stream)
    before = manager.bind_pending_event(trigger_id="a", key=KEY)
    assert before is not None
    reject_shared_stream_event("malformed")
    await turns()
    ((event, outcome),) = source.settled
    assert (event, outcome.acked, outcome.failed, outcome.rejected) == ("bad", 0, 0, 1)
    assert outcome.rejections == (Rejection("a", "malformed", 1),)
    assert not outcome.is_clean
    hand = manager.event_in_hand(trigger_id="a", key=KEY)
    assert hand is not None
    assert (hand.raw_event, hand.void, hand.gated) == ("bad", True, True)
    assert manager.bind_pending_event(trigger_id="a", key=KEY) is None
    reject_shared_stream_event("twice")
    manager.confirm_persisted([before])
    assert await anext(stream) == "good"
    assert len(source.settled) == 1
    await manager.stop_all()


@in_virtual_time
async def test_r8_who_rejects_and_then_times_out_is_counted_once() -> None:
    """R8, R9, trap: a reject is past the event, so that the failure of its subscriber concerns only what comes after."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    other = Filter(manager, source, "b", lambda event: asyncio.sleep(5))
    source.feed("bad", "next")
    await anext(stream)
    reject_shared_stream_event("malformed")
    await asyncio.sleep(15)
    with pytest.raises(AckTimeout):
        await anext(stream)
    assert other.errors == []
    assert source.counts == {"bad": (1, 0, 1), "next": (1, 1, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r8_a_reject_anywhere_else_warns_and_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """R8: between events, and in another task."""
    manager, source = SharedStreamManager(), Source()

    async def handle(event: Any) -> None:
        await asyncio.create_task(reject_elsewhere())

    async def reject_elsewhere() -> None:
        reject_shared_stream_event("from another task")

    reject_shared_stream_event("nothing in hand")
    Filter(manager, source, "a", handle)
    source.feed(1)
    await turns()
    assert source.counts == {1: (1, 0, 0)}
    assert caplog.text.count("no event in hand that could be rejected") == 2
    await manager.stop_all()


@in_virtual_time
async def test_r8_a_reject_works_in_a_filter_that_pulls_by_wait_for() -> None:
    """R8, trap: Python 3.11's wait_for pulls in a child task, which is not the filter's; a cancelled pull takes nothing."""
    manager, source = SharedStreamManager(), Source()
    seen: list[Any] = []

    async def run_filter() -> None:
        stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
        while True:
            try:
                event = await asyncio.wait_for(anext(stream), 1)
            except TimeoutError:
                continue
            seen.append(event)
            if event == "bad":
                reject_shared_stream_event("bad")

    task = asyncio.create_task(run_filter())
    await asyncio.sleep(5.5)
    source.feed("good", "bad", "good again")
    await asyncio.sleep(5.5)
    assert seen == ["good", "bad", "good again"]
    assert source.counts == {"good": (1, 0, 0), "bad": (0, 0, 1), "good again": (1, 0, 0)}
    task.cancel()
    await manager.stop_all()


@in_virtual_time
async def test_r9_an_event_in_hand_times_out_and_fails_everything_its_subscriber_owes() -> None:
    """R9: in hand, unpulled and unconfirmed alike; the siblings are unharmed; the error comes at once and at the next pull."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    good = Filter(manager, source, "good")
    slow = Filter(manager, source, "slow", lambda event: event if event == 1 else asyncio.sleep(1000))
    source.feed(1, 2, 3)
    await asyncio.sleep(12)
    assert source.counts == {1: (1, 1, 0), 2: (1, 1, 0), 3: (1, 1, 0)}
    assert good.seen == [1, 2, 3]
    assert isinstance(slow.errors[0], AckTimeout)
    slow.confirm(1)
    slow.task.cancel()
    with pytest.raises(AckTimeout):
        await anext(slow.stream)
    assert manager.event_in_hand(trigger_id="slow", key=KEY) is not None
    await manager.stop_all()


@in_virtual_time
async def test_r9_an_overdue_subscriber_fails_within_a_tenth_of_the_timeout() -> None:
    """R9: not before ack_timeout, and no later than a tenth of it after."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    slow = Filter(manager, source, "slow", lambda event: asyncio.sleep(1000))
    await asyncio.sleep(3.21)
    source.feed(1)
    await asyncio.sleep(9.99)
    assert slow.errors == []
    await asyncio.sleep(1.02)
    assert len(slow.errors) == 1
    await manager.stop_all()


@in_virtual_time
async def test_r9_the_clock_of_an_event_does_not_run_while_it_waits_in_the_queue() -> None:
    """R9, trap: ack_timeout runs from the pull, as a sweep sees it; ten events of 4 s each under a timeout of 10 s all pass."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    slow = Filter(manager, source, "slow", lambda event: asyncio.sleep(4))
    source.feed(*range(10))
    await asyncio.sleep(45)
    assert slow.errors == []
    assert list(source.counts.values()) == [(1, 0, 0)] * 10
    await manager.stop_all()


@in_virtual_time
async def test_r9_a_subscriber_that_never_pulls_fails_after_queue_timeout() -> None:
    """R9: its clock starts when its oldest unpulled event came."""
    manager, source = SharedStreamManager(ack_timeout=100, queue_timeout=10), Source()
    idle = manager.subscribe(trigger_id="idle", trigger=trigger_of(source), key=KEY)
    await asyncio.sleep(50)
    source.feed(1)
    await asyncio.sleep(9.5)
    assert source.counts == {}
    await asyncio.sleep(2)
    assert source.counts == {1: (0, 1, 0)}
    with pytest.raises(AckTimeout):
        await anext(idle)
    await manager.stop_all()


@in_virtual_time
async def test_r9_an_unconfirmed_event_times_out_unless_the_store_is_away() -> None:
    """R9, X2: what waits only for the store does not age while the store is away."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    watching = Filter(manager, source, "a", lambda event: event)
    source.feed(1)
    await asyncio.sleep(5)
    manager.store_available(False)
    await asyncio.sleep(600)
    assert watching.errors == []
    manager.store_available(True)
    await asyncio.sleep(4)
    assert watching.errors == []
    await asyncio.sleep(3)
    assert source.counts == {1: (0, 1, 0)}
    assert isinstance(watching.errors[0], AckTimeout)
    await manager.stop_all()


@in_virtual_time
async def test_r9_a_plain_leave_moves_past_what_is_in_hand_and_fails_what_was_not_pulled() -> None:
    """R9, X1: an event left behind resolves when what it derived is stored, also after the leave."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    Filter(manager, source, "b")
    source.feed(1, 2, 3)
    await anext(stream)
    write = manager.bind_pending_event(trigger_id="a", key=KEY)
    assert write is not None
    await manager.unsubscribe("a", KEY)
    await turns()
    assert source.counts == {}
    manager.confirm_persisted([write])
    await turns()
    assert source.counts == {1: (2, 0, 0), 2: (1, 1, 0), 3: (1, 1, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r9_what_a_departed_subscriber_derived_times_out_too() -> None:
    """R9: nobody is left to be failed, the event is."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    Filter(manager, source, "b")
    source.feed(1)
    await anext(stream)
    manager.bind_pending_event(trigger_id="a", key=KEY)
    await manager.unsubscribe("a", KEY)
    await asyncio.sleep(12)
    assert source.counts == {1: (1, 1, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r9_an_unclean_leave_fails_the_event_in_hand() -> None:
    """R9: the filter raised or was cancelled."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    Filter(manager, source, "b")
    source.feed(1, 2)
    await anext(stream)
    manager.bind_pending_event(trigger_id="a", key=KEY)
    await manager.unsubscribe("a", KEY, abandon=True)
    await turns()
    assert source.counts == {1: (1, 1, 0), 2: (1, 1, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_r10_a_refused_write_fails_that_subscribers_event_at_once() -> None:
    """R10, X2, trap: no stored id, no ack; the subscriber goes on, and its other writes of that event are forgotten."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    Filter(manager, source, "b")
    source.feed(1, 2, 3)
    await anext(stream)
    writes = [manager.bind_pending_event(trigger_id="a", key=KEY) for _ in range(2)]
    assert writes[0] is not None
    manager.persist_failed([writes[0]])  # while the event is in hand
    hand = manager.event_in_hand(trigger_id="a", key=KEY)
    assert hand is not None
    assert hand.void
    await turns()
    assert source.counts == {1: (1, 1, 0)}
    await anext(stream)
    write = manager.bind_pending_event(trigger_id="a", key=KEY)
    assert write is not None
    assert await anext(stream) == 3
    manager.persist_failed([write])  # after it was moved past
    await turns()
    assert source.counts[2] == (1, 1, 0)
    await manager.stop_all()


@in_virtual_time
async def test_r11_an_event_that_met_nobody_is_not_clean_and_the_stream_reads_on() -> None:
    """R11: all-zero counts; a stream whose subscribers have all failed stays registered."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    slow = Filter(manager, source, "slow", lambda event: asyncio.sleep(1000))
    source.feed(1)
    await asyncio.sleep(12)
    assert slow.errors
    source.feed(2)
    await turns()
    event, outcome = source.settled[-1]
    assert (event, tuple(outcome)[:3], outcome.is_clean) == (2, (0, 0, 0), False)
    assert manager.stream(KEY) is not None
    await manager.stop_all()


@in_virtual_time
async def test_resume_offers_the_event_in_hand_again_and_forgets_what_was_bound() -> None:
    """Trap: the cursor does not move, the older iterator is invalid, the attempt counts, what was bound is forgotten."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed(1, 2, 3)
    await anext(stream)
    assert await anext(stream) == 2
    lost = manager.bind_pending_event(trigger_id="a", key=KEY)
    assert lost is not None
    again = manager.resume(trigger_id="a", key=KEY)
    with pytest.raises(StreamError):
        await anext(stream)
    assert await anext(again) == 2
    hand = manager.event_in_hand(trigger_id="a", key=KEY)
    assert hand is not None
    assert hand.attempt == 2
    kept = manager.bind_pending_event(trigger_id="a", key=KEY)
    assert kept is not None
    assert await anext(again) == 3
    reject_shared_stream_event()
    manager.confirm_persisted([lost])
    await turns()
    assert list(source.counts) == [1]
    manager.confirm_persisted([kept])
    await turns()
    assert source.counts == {1: (1, 0, 0), 2: (1, 0, 0), 3: (0, 0, 1)}
    await manager.stop_all()


@in_virtual_time
async def test_resume_does_not_offer_a_void_event_and_a_reject_after_it_tells_the_attempt() -> None:
    """A rejected event is resolved: after resume comes the next one. `Rejection.attempt` is resumes + 1."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed(1, 2)
    await anext(stream)
    reject_shared_stream_event()
    stream = manager.resume(trigger_id="a", key=KEY)
    assert await anext(stream) == 2
    for _ in range(2):
        stream = manager.resume(trigger_id="a", key=KEY)
        assert await anext(stream) == 2
    reject_shared_stream_event("third time")
    await turns()
    assert source.settled[1][1].rejections == (Rejection("a", "third time", 3),)
    await manager.stop_all()


@in_virtual_time
async def test_resume_does_not_restart_the_clock() -> None:
    """R9, trap: attempts in place share one ack_timeout; `resume` starts no clock anew."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    source.feed(1)
    await anext(stream)
    for _ in range(3):
        await asyncio.sleep(3)
        stream = manager.resume(trigger_id="a", key=KEY)
        await anext(stream)
    await asyncio.sleep(2)
    assert source.counts == {1: (0, 1, 0)}
    await manager.stop_all()


@in_virtual_time
async def test_the_event_in_hand_tells_its_identity() -> None:
    """A Message brings its id and delivery count; between events there is nothing in hand."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    message = Message(value=b"{}", id="orders/0/7/1", source="orders", timestamp=0.0, delivery_count=2)
    assert manager.event_in_hand(trigger_id="a", key=KEY) is None
    source.feed(message, lane="eu")
    await anext(stream)
    hand = manager.event_in_hand(trigger_id="a", key=KEY)
    assert hand is not None
    assert (hand.event_id, hand.lane, hand.delivery_count, hand.attempt) == ("orders/0/7/1", "eu", 2, 1)
    assert hand.raw_event is message
    asking = asyncio.create_task(anext(stream))
    await turns()
    assert manager.event_in_hand(trigger_id="a", key=KEY) is None
    asking.cancel()
    await manager.stop_all()


@in_virtual_time
async def test_an_indexed_subscriber_is_offered_only_what_matches_and_acks_all() -> None:
    """Trap, the match index: it counts in every cohort, is woken only for matches, and holds only those."""
    manager, source = SharedStreamManager(), Source()
    eu = Filter(manager, source, "eu", lambda event: event["n"], match={"region": ["eu"]})
    us = Filter(manager, source, "us", match={"region": ["us"]})
    source.feed({"region": "eu", "n": 1}, {"region": "us", "n": 2}, {"region": "asia", "n": 3})
    await turns()
    assert ([event["n"] for event in eu.seen], [event["n"] for event in us.seen]) == ([1], [2])
    assert source.settled == []
    eu.confirm(1)
    await turns()
    assert [tuple(outcome)[:3] for _, outcome in source.settled] == [(2, 0, 0)] * 3
    await manager.stop_all()


@in_virtual_time
async def test_an_indexed_subscriber_fails_only_what_it_was_offered() -> None:
    """A timeout, a reject and a leave of an indexed subscriber count once, and only where it had a part."""
    manager, source = SharedStreamManager(ack_timeout=10), Source()
    hung = Filter(manager, source, "hung", lambda event: asyncio.sleep(1000), match={"n": [1, 2]})

    def reject(event: Any) -> None:
        reject_shared_stream_event("no")

    Filter(manager, source, "rejecting", reject, match={"n": [2]})
    source.feed({"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}, lane="x")
    await asyncio.sleep(12)
    assert [tuple(outcome)[:3] for _, outcome in source.settled] == [(2, 0, 0), (1, 1, 0), (0, 1, 1), (2, 0, 0)]
    assert isinstance(hung.errors[0], AckTimeout)
    await manager.stop_all()
