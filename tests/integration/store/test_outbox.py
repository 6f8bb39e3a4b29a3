"""Claims are leases with tokens; marks end them, and late ones have no effect."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy import event as sqlalchemy_event

from headrace.store import EventFilter, EventState, Store, StoredEvent, Unit

MakeUnit = Callable[..., Unit]
PassTime = Callable[[Store, float], Awaitable[None]]


@pytest.fixture
async def outbox(store: Store, writing: Any, unit: MakeUnit) -> Store:
    """A store with the events 0 to 9."""
    await writing.store(*(unit(str(n), n) for n in range(10)))
    return store


def numbers(events: list[StoredEvent]) -> list[Any]:
    return [event.payload for event in events]


async def state(store: Store, event: StoredEvent) -> EventState:
    record = await store.events.show(event.id)
    assert record is not None
    return record.state


async def test_events_are_claimed_by_age_and_once(outbox: Store) -> None:
    """Who claims takes the oldest, and nobody else gets them while the claim lasts."""
    mine = await outbox.outbox.claim("me", 4, 60)
    others = await outbox.outbox.claim("other", 100, 60)
    assert numbers(mine) == [0, 1, 2, 3]
    assert numbers(others) == [4, 5, 6, 7, 8, 9]
    assert await outbox.outbox.claim("third", 100, 60) == []
    assert {event.attempt for event in mine} == {1}


async def test_priority_goes_before_age(outbox: Store) -> None:
    """A weightier event overtakes, also one whose backoff has just ended."""
    await outbox.database.write(
        lambda connection: connection.execute(text("UPDATE headrace_event SET priority = id WHERE payload IN ('7', '8')"))
    )
    assert numbers(await outbox.outbox.claim("me", 3, 60)) == [8, 7, 0]


async def test_only_the_triggers_asked_for_are_claimed(outbox: Store, writing: Any, unit: MakeUnit) -> None:
    """A dispatcher takes nothing it has no target for."""
    await writing.store(unit("a", "a", trigger_id="a"), unit("b", "b", trigger_id="b"))
    assert numbers(await outbox.outbox.claim("me", 100, 60, triggers=["a", "b"])) == ["a", "b"]
    assert await outbox.outbox.claim("me", 100, 60, triggers=[]) == []


async def test_the_three_ends_of_a_claim(outbox: Store) -> None:
    """Delivered and dead are settled, a retry is pending again, and every answer is on record."""
    first, second, third = await outbox.outbox.claim("me", 3, 60)
    assert await outbox.outbox.mark_delivered(first, "200")
    assert await outbox.outbox.mark_retry(second, 30, "503 \0")
    assert await outbox.outbox.mark_dead(third, "404")
    for event, expected, outcome, answer in [
        (first, EventState.DELIVERED, "delivered", "200"),
        (second, EventState.PENDING, "retry", "503 \\0"),
        (third, EventState.DEAD, "dead", "404"),
    ]:
        record = await outbox.events.show(event.id)
        assert record is not None
        assert (record.state, record.last_answer) == (expected, answer)
        assert [(attempt.outcome, attempt.answer, attempt.owner) for attempt in record.history] == [(outcome, answer, "me")]
        assert record.history[0].started_at <= record.history[0].ended_at
        assert (record.settled_at is None) == (expected is EventState.PENDING)


async def test_a_backoff_is_waited_out(outbox: Store, pass_time: PassTime) -> None:
    """An event put off is not handed out before its time, and then with its next attempt."""
    claimed = await outbox.outbox.claim("me", 100, 60)
    for each in claimed:
        await outbox.outbox.mark_retry(each, 30, "503")
    assert await outbox.outbox.claim("me", 100, 60) == []
    assert 20 < (await outbox.outbox.next_due() or 0) <= 30
    await pass_time(outbox, 31)
    assert await outbox.outbox.next_due() == 0
    again = await outbox.outbox.claim("me", 100, 60)
    assert numbers(again) == list(range(10))
    assert {event.attempt for event in again} == {2}


async def test_x16_an_expired_claim_is_retaken_once_and_its_owner_is_told(outbox: Store, pass_time: PassTime) -> None:
    """X16: a dead replica's events are taken over by one other; what the old owner says late has no effect."""
    (lost, *_) = await outbox.outbox.claim("old", 10, 30)
    assert await outbox.outbox.claim("new", 10, 30) == []
    await pass_time(outbox, 31)
    taken, more = await asyncio.gather(outbox.outbox.claim("new", 10, 30), outbox.outbox.claim("third", 10, 30))
    assert sorted(numbers(taken + more)) == list(range(10))
    (found,) = [event for event in taken + more if event.id == lost.id]
    assert (found.attempt, found.token) == (2, lost.token + 1)

    assert not await outbox.outbox.mark_delivered(lost)
    assert not await outbox.outbox.mark_dead(lost, "late")
    assert await outbox.outbox.renew([lost], 60) == set()
    await outbox.outbox.release([lost])
    assert await state(outbox, lost) is EventState.DISPATCHING

    assert await outbox.outbox.mark_delivered(found)
    record = await outbox.events.show(lost.id)
    assert record is not None
    assert [attempt.outcome for attempt in record.history] == ["expired", "delivered"]
    assert record.history[0].owner == "old"


async def test_x16_a_renewed_claim_lasts(outbox: Store, pass_time: PassTime) -> None:
    """X16: who renews keeps its claims; the answer names those it still has."""
    events = await outbox.outbox.claim("me", 10, 30)
    await pass_time(outbox, 20)
    assert await outbox.outbox.mark_delivered(events[0])
    assert await outbox.outbox.renew(events, 30) == {event.id for event in events[1:]}
    await pass_time(outbox, 20)
    assert await outbox.outbox.claim("other", 10, 30) == []


async def test_a_claim_given_back_costs_no_attempt(outbox: Store) -> None:
    """A dispatcher that stops hands its events over at once, untried."""
    events = await outbox.outbox.claim("me", 10, 60)
    await outbox.outbox.release(events[:5])
    again = await outbox.outbox.claim("other", 10, 60)
    assert numbers(again) == [0, 1, 2, 3, 4]
    assert {event.attempt for event in again} == {1}
    record = await outbox.events.show(events[0].id)
    assert record is not None
    assert record.history == ()


async def test_marks_of_many_events_are_stored_together(outbox: Store, writing: Any, unit: MakeUnit) -> None:
    """A burst of answers costs few transactions, and each caller hears of its own event."""
    await writing.store(*(unit(f"more {n}", n) for n in range(290)))
    events = await outbox.outbox.claim("me", 300, 60)
    transactions = 0
    write = outbox.database.write

    async def counted(job: Any) -> Any:
        nonlocal transactions
        transactions += 1
        return await write(job)

    outbox.database.write = counted  # type: ignore[method-assign]
    done = await asyncio.gather(*(outbox.outbox.mark_delivered(event) for event in events))
    assert done == [True] * 300
    assert transactions <= 3
    assert (await outbox.outbox.backlog()).pending == 0


async def test_of_two_marks_of_one_claim_the_first_wins(outbox: Store) -> None:
    """An answer that comes together with its own timeout is counted once."""
    (event, *_) = await outbox.outbox.claim("me", 1, 60)
    marks = (
        outbox.outbox.mark_delivered(event),
        outbox.outbox.mark_retry(event, 1, "timeout"),
        outbox.outbox.mark_dead(event, ""),
    )
    assert [*await asyncio.gather(*marks)] == [True, False, False]
    assert await state(outbox, event) is EventState.DELIVERED


async def test_a_claim_is_bounded_in_bytes(store: Store, writing: Any, unit: MakeUnit) -> None:
    """Large payloads come a few at a time, and one always comes."""
    await writing.store(*(unit(str(n), "x" * 400) for n in range(6)))
    assert len(await store.outbox.claim("me", 100, 60, max_bytes=1000)) == 3
    assert len(await store.outbox.claim("me", 100, 60, max_bytes=1)) == 1
    assert len(await store.outbox.claim("me", 100, 60, max_bytes=1000)) == 2


async def test_the_backlog_says_what_waits_and_for_how_long(
    outbox: Store, pass_time: PassTime, unit: MakeUnit, writing: Any
) -> None:
    """Metrics see pending, dispatching and dead events, and the age of the oldest that is pending."""
    await pass_time(outbox, 100)
    await writing.store(unit("young", 1), unit("other", 1, trigger_id="u"))
    events = await outbox.outbox.claim("me", 3, 60)
    await outbox.outbox.mark_dead(events[0], "404")
    await outbox.outbox.mark_delivered(events[1])
    backlog = await outbox.outbox.backlog()
    assert (backlog.pending, backlog.dispatching, backlog.dead, backlog.deferred) == (9, 1, 1, 0)
    assert backlog.pending_by_trigger == {"t": 8, "u": 1}
    assert 100 <= (backlog.oldest_pending_age or 0) < 160


async def test_an_empty_outbox_has_nothing_due(store: Store) -> None:
    """No event, no time to wait for."""
    assert await store.outbox.next_due() is None
    assert (await store.outbox.backlog()).oldest_pending_age is None
    assert await store.outbox.claim("me", 10, 60) == []


async def test_what_is_settled_is_not_in_the_way(outbox: Store) -> None:
    """However many events are delivered, claims and metrics read only the indexes of what waits."""
    statements: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *others: Any) -> None:
        statements.append((statement, parameters))

    def explain(connection: Connection) -> list[str]:
        words = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # it would scan a table as small as this one
        plans = []
        for statement, parameters in statements:
            if "headrace_event" in statement:
                rows = connection.exec_driver_sql(f"{words} {statement}", parameters)
                plans.append("\n".join(str(row[-1]) for row in rows))
        return plans

    sqlalchemy_event.listen(Engine, "before_cursor_execute", note)
    await outbox.outbox.claim("me", 10, 60, triggers=["t"])
    await outbox.outbox.next_due()
    await outbox.outbox.backlog()
    await outbox.events.find(EventFilter(trigger_id="t", states=[EventState.PENDING]), limit=1)
    sqlalchemy_event.remove(Engine, "before_cursor_execute", note)
    plans = await outbox.database.read(explain)
    assert len(plans) >= 3
    for plan in plans:
        assert not re.search(r"SCAN (e|headrace_event)\b(?!.*USING)", plan), plan
        assert "Seq Scan on headrace_event" not in plan, plan
    for index in ("ready", "due", "open"):
        assert f"headrace_event_{index}" in "\n".join(plans)


async def test_a_purged_event_is_never_claimed(outbox: Store) -> None:
    """X17: what was taken out by hand does not stand in the way of what is fresh."""
    await outbox.events.purge(EventFilter(ids=[1, 2, 3]))
    assert numbers(await outbox.outbox.claim("me", 2, 60)) == [3, 4]
