"""The bookkeeping by itself, without a loop: what the model test found, and what needs a ledger's inside to be seen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import pytest

from headrace.errors import AckTimeout
from headrace.streams.batch import EventBatch
from headrace.streams.contract import AdvanceOutcome
from headrace.streams.cursor import NOTHING, AnyCursor
from headrace.streams.ledger import Ledger
from headrace.streams.segment import Segment


def publish(ledger: Ledger, *events: Any, lane: Hashable = "x", absent: int = 0, now: float = 0.0) -> None:
    """Fan a batch out, and let a turn of the loop pass."""
    ledger.publish(EventBatch(list(events), list(events), lane=lane, sizes=[1] * len(events)), absent=absent, now=now)
    ledger.watch()


def pull(cursor: AnyCursor, count: int = 1) -> list[Any]:
    """Pull as a subscription does."""
    iterator: Iterator[Any] = cursor.iterator
    pulled = []
    for _ in range(count):
        raw = next(iterator, None)
        if raw is None:
            raw = cursor.pull()
            iterator = cursor.iterator
        pulled.append(raw)
    return pulled


def settle(ledger: Ledger, lane: Hashable = "x") -> dict[Any, AdvanceOutcome]:
    """Make the lane's next `advance` call, which returns at once."""
    harvest = ledger.harvest(ledger.lanes[lane])
    if harvest is None:
        return {}
    told = {item.broker_payload: item.outcome for item in harvest.items}
    ledger.settle(harvest)
    return told


def test_r9_what_a_departed_subscriber_derived_fails_its_event_once() -> None:
    """R9: two derived events of one event, both late, are one failed member."""
    ledger = Ledger()
    leaving, staying = ledger.join("leaving"), ledger.join("staying")
    publish(ledger, "event")
    pull(leaving)
    for write_id in (1, 2):
        leaving.bind(write_id, 0)
    ledger.leave(leaving)
    pull(staying, 2)
    ledger.sweep(0, 10, 10)
    ledger.sweep(10, 10, 10)
    assert settle(ledger) == {"event": AdvanceOutcome(1, 1)}


def test_r9_void_events_do_not_wait_to_be_pulled() -> None:
    """R9, R15: who is offered nothing is not overdue for pulling nothing."""
    ledger = Ledger()
    ledger.set_ordered(True)
    busy = ledger.join("busy")
    publish(ledger, "in hand", lane="y")
    pull(busy)
    publish(ledger, 1, 2, absent=1)
    publish(ledger, 3, lane="z")
    ledger.lose_lane("x")
    ledger.lose_lane("z")
    ledger.sweep(0, 100, 10)
    assert ledger.sweep(50, 100, 10) == []


def test_a_match_that_cannot_be_indexed_leaves_nothing_behind() -> None:
    """R1: a subscription that fails is in no cohort."""
    ledger = Ledger()
    with pytest.raises(TypeError):
        ledger.join("broken", {"region": "eu"})
    assert ledger.cohort_size == 0
    ledger.join("broken", {"region": ["eu"]})
    assert ledger.cohort_size == 1


def test_r17_bytes_that_come_free_are_news() -> None:
    """R17: the reader may wait for the bytes of a derived event, whatever else its event still waits for."""
    news = []
    ledger = Ledger(on_news=lambda: news.append(ledger.in_flight_bytes))
    cursor = ledger.join("a")
    publish(ledger, "event")
    pull(cursor)
    cursor.bind(1, 900)
    cursor.bind(2, 1)
    news.clear()
    ledger.confirm([1])
    assert news[-1:] == [2]


class Raw:
    """A raw event that is watched for being freed."""


@pytest.mark.parametrize("how", ["failed", "left"])
def test_r17_a_subscriber_that_is_gone_keeps_no_events(how: str) -> None:
    """R17: a hung filter was in the middle of a batch; what it had not pulled is freed when it is settled."""
    ledger = Ledger()
    hung, other = ledger.join("hung"), ledger.join("other")
    raws = [Raw() for _ in range(3)]
    references = [weakref.ref(raw) for raw in raws]
    ledger.publish(EventBatch(raws, ["a", "b", "c"], lane="x"))
    del raws
    pull(hung)
    pull(other, 4)
    if how == "failed":
        ledger.fail(hung, AckTimeout())
    else:
        ledger.leave(hung)
    assert list(settle(ledger)) == ["a", "b", "c"]
    gc.collect()
    assert [reference() is None for reference in references] == [False, True, True], "only what it has in hand"


def count_segments() -> int:
    gc.collect()
    return sum(isinstance(each, Segment) for each in gc.get_objects())


def test_r17_one_stuck_event_keeps_no_later_segments() -> None:
    """R17: what everybody is through and what is settled is freed, though an older event waits for the store for long."""
    before = count_segments()
    ledger = Ledger()
    cursor = ledger.join("a")
    publish(ledger, "stuck", lane="x")
    pull(cursor)
    cursor.bind(1, 0)
    for event in range(50):
        publish(ledger, event, lane="y")
        pull(cursor)
        settle(ledger, "y")
    assert count_segments() - before < 5
    ledger.confirm([1])
    pull(cursor)
    assert list(settle(ledger)) == ["stuck"]


def test_r16_void_events_take_no_room() -> None:
    """R16, R15: what nobody is offered any more keeps no subscriber full, neither one that walks nor one that is indexed."""
    ledger = Ledger()
    walking, indexed = ledger.join("walking"), ledger.join("indexed", {})
    batch = EventBatch([{}, {}], [1, 2], lane="y")
    publish(ledger, {}, lane="z")
    pull(walking)
    pull(indexed)
    publish(ledger, {}, {}, lane="x")
    assert ledger.admit(batch, 2) == (0, [walking, indexed])
    ledger.lose_lane("x")
    assert ledger.admit(batch, 2) == (2, [])


def test_r16_all_who_have_no_room_are_named() -> None:
    """R16: nobody gets one event too many because somebody else is full as well."""
    ledger = Ledger()
    walking, indexed = ledger.join("walking"), ledger.join("indexed", {"n": [1]})
    publish(ledger, {"n": 1}, {"n": 2})
    assert ledger.admit(EventBatch([{"n": 1}], [3]), 1) == (0, [walking, indexed])
    assert ledger.admit(EventBatch([{"n": 2}], [3]), 1) == (0, [walking])


def test_r15_the_old_run_leaves_alone_though_the_new_one_has_failed_already() -> None:
    """R15: what came while its lane started over is never in one call with the lane's new run."""
    ledger = Ledger()
    ledger.set_ordered(True)
    cursor = ledger.join("a")
    publish(ledger, 1, absent=1)
    pull(cursor, 2)
    harvest = ledger.harvest(ledger.lanes["x"])
    assert harvest is not None
    publish(ledger, "old 2")
    ledger.settle(harvest)
    ledger.restarted.clear()
    publish(ledger, 1, 2, absent=1)
    assert pull(cursor, 2) == [1, NOTHING]
    assert settle(ledger) == {"old 2": AdvanceOutcome(0, 1)}
    assert settle(ledger) == {1: AdvanceOutcome(1, 1), 2: AdvanceOutcome(0, 2)}


def test_r17_an_event_that_was_rejected_is_kept_no_longer_than_it_is_in_hand() -> None:
    """R17: the next pull lets go of it, also within a batch."""
    ledger = Ledger()
    cursor = ledger.join("a")
    raws = [Raw() for _ in range(2)]
    rejected = weakref.ref(raws[0])
    ledger.publish(EventBatch(raws, ["a", "b"], lane="x"))
    ledger.watch()
    del raws
    pull(cursor)
    cursor.reject("bad")
    assert list(settle(ledger)) == ["a"]
    assert rejected() is not None
    pull(cursor)
    assert rejected() is None


def test_r9_an_event_that_is_offered_again_is_not_moved_past_by_leaving() -> None:
    """R9: `resume` forgot what was derived from it; who leaves before pulling it again has left before pulling it."""
    ledger = Ledger()
    cursor = ledger.join("a")
    publish(ledger, "event")
    pull(cursor)
    cursor.bind(1, 0)
    cursor.resume()
    ledger.leave(cursor)
    assert settle(ledger) == {"event": AdvanceOutcome(0, 1)}
