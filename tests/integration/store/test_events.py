"""Looking at stored events, and changing their fate by hand."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.store import DeadLetter, EventFilter, EventState, Store, Unit
from headrace.triggers.base import TriggerEvent

MakeUnit = Callable[..., Unit]
PassTime = Callable[[Store, float], Awaitable[None]]
EVERYTHING = EventFilter()


async def settle(store: Store, *, delivered: int = 0, dead: int = 0) -> None:
    """Claim the oldest, and mark so many of them delivered, the next ones dead."""
    events = await store.outbox.claim("me", delivered + dead, 60)
    for event in events[:delivered]:
        assert await store.outbox.mark_delivered(event)
    for event in events[delivered:]:
        assert await store.outbox.mark_dead(event, "404")


async def states(store: Store) -> dict[Any, EventState]:
    return {record.event.identity: record.state for record in await store.events.find(limit=1000)}


async def test_events_are_found_newest_first_in_pages(store: Store, writing: Any, unit: MakeUnit) -> None:
    """A list can be paged through, and what comes meanwhile does not shift it."""
    await writing.store(*(unit(str(n), n) for n in range(5)))
    first = await store.events.find(limit=2)
    await writing.store(unit("new", "new"))
    second = await store.events.find(limit=2, before=first[-1].event.id)
    assert [record.event.payload for record in first + second] == [4, 3, 2, 1]


async def test_every_condition_of_a_filter_counts(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """Events are chosen by id, identity, trigger, stream, state and age, and by all of them together."""
    await writing.store(unit("old", "old"), unit("a:b.g1", "odd id", trigger_id="x:y"))
    await pass_time(store, 100)
    await writing.store(unit("new", "new", 2), Unit("t", "payments", "p", [TriggerEvent("other stream")]))
    await settle(store, delivered=1)

    async def found(**conditions: Any) -> list[Any]:
        return [record.event.payload for record in await store.events.find(EventFilter(**conditions))][::-1]

    assert await found() == ["old", "odd id", "new", 2, "other stream"]
    assert await found(ids=[1, 3, 99]) == ["old", "new"]
    assert await found(identities=["t:new:1", "x%3Ay:a:b.g1:0", "t:new:7", "nonsense"]) == ["odd id", 2]
    assert await found(identities=[]) == []
    assert await found(trigger_id="x:y") == ["odd id"]
    assert await found(stream="payments") == ["other stream"]
    assert await found(states=[EventState.DELIVERED]) == ["old"]
    assert await found(older_than=50) == ["old", "odd id"]
    assert await found(newer_than=50, trigger_id="t", stream="orders") == ["new", 2]
    assert await store.events.counts() == {
        ("t", EventState.DELIVERED): 1,
        ("t", EventState.PENDING): 3,
        ("x:y", EventState.PENDING): 1,
    }


async def test_one_event_is_shown_by_id_or_identity(store: Store, writing: Any, unit: MakeUnit) -> None:
    """What a log line names can be looked up."""
    await writing.store(unit("orders/0/7/1", {"n": 1}))
    by_identity = await store.events.show("t:orders/0/7/1:0")
    assert by_identity is not None
    assert by_identity == await store.events.show(by_identity.event.id)
    assert await store.events.show("t:orders/0/8/1:0") is None
    assert await store.events.show(4711) is None


async def test_a_dead_event_is_retried_under_its_identity(store: Store, writing: Any, unit: MakeUnit) -> None:
    """It was never taken, so it is still the same event; its attempts begin anew and its history stays."""
    await writing.store(*(unit(str(n), n) for n in range(3)))
    await settle(store, delivered=1, dead=1)
    assert await store.events.retry(EVERYTHING) == 1
    assert await store.events.retry(EVERYTHING) == 0
    (event, _) = await store.outbox.claim("me", 10, 60)
    assert (event.payload, event.attempt, event.identity) == (1, 1, "t:1:0")
    assert await store.outbox.mark_delivered(event)
    record = await store.events.show("t:1:0")
    assert record is not None
    assert [attempt.outcome for attempt in record.history] == ["dead", "delivered"]


async def test_a_delivered_event_is_retried_as_a_new_generation(store: Store, writing: Any, unit: MakeUnit) -> None:
    """On purpose only: under a new identity, which a target takes as new, each time another."""
    await writing.store(unit("m", 1, 2), unit("n", 3))
    for generation in (1, 2):
        await settle(store, delivered=3)
        assert await store.events.retry(EventFilter(ids=[1, 3]), new_generation=True) == 2
        assert set(await states(store)) == {f"t:m:0.g{generation}", "t:m:1", f"t:n:0.g{generation}"}
    claimed = await store.outbox.claim("me", 10, 60)
    assert {event.identity for event in claimed} == {"t:m:0.g2", "t:n:0.g2"}


async def test_a_forgotten_message_is_derived_again_as_a_new_generation(store: Store, writing: Any, unit: MakeUnit) -> None:
    """After `forget` the next redelivery is derived once more, keys included, and only once; what waited is taken out."""
    await writing.store(unit("m", TriggerEvent(1, "k"), 2), unit("n", 3))
    await settle(store, delivered=1)
    assert await store.events.forget(EventFilter(ids=[1])) == 1
    assert await store.events.forget(EventFilter(ids=[1])) == 0
    for payload in ("again", "once more"):
        await writing.store(unit("m", TriggerEvent(payload, "k")), unit("n", payload))
    assert await states(store) == {
        "t:m:0": EventState.DELIVERED,
        "t:m:1": EventState.PURGED,
        "t:n:0": EventState.PENDING,
        "t:m:0.g1": EventState.PENDING,
    }
    (fresh, _) = await store.events.find(EventFilter(states=[EventState.PENDING]))
    assert (fresh.event.payload, fresh.event.dedupe_key, fresh.event.generation) == ("again", "k", 1)


async def test_generations_of_retry_and_forget_never_meet(store: Store, writing: Any, unit: MakeUnit) -> None:
    """Each raise takes the next generation, so no identity comes twice."""
    await writing.store(unit("m", 1))
    await settle(store, delivered=1)
    await store.events.retry(EVERYTHING, new_generation=True)
    await settle(store, delivered=1)
    await store.events.forget(EVERYTHING)
    await writing.store(unit("m", 1))
    await settle(store, delivered=1)
    assert await store.events.retry(EVERYTHING, new_generation=True) == 1
    assert await states(store) == {"t:m:0.g1": EventState.DELIVERED, "t:m:0.g3": EventState.PENDING}


async def test_x17_purged_events_are_gone_and_come_no_more(store: Store, writing: Any, unit: MakeUnit) -> None:
    """X17: stale events are taken out with one command; a redelivery changes nothing; what is being dispatched is left."""
    await writing.store(*(unit(str(n), n) for n in range(5)))
    await settle(store, delivered=1, dead=1)
    (busy,) = await store.outbox.claim("me", 1, 60)
    assert await store.events.purge(EVERYTHING) == 4
    assert await store.events.purge(EVERYTHING) == 0
    await writing.store(*(unit(str(n), n) for n in range(5)))
    assert list((await states(store)).values())[::-1] == [
        EventState.DELIVERED,
        EventState.PURGED,
        EventState.DISPATCHING,
        EventState.PURGED,
        EventState.PURGED,
    ]
    assert [record.event.has_payload for record in await store.events.find()][::-1] == [False, False, True, False, False]
    assert await store.events.retry(EVERYTHING) == 0
    assert await store.outbox.mark_delivered(busy)


async def test_x17_what_is_too_old_is_given_up(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """X17: events past their age are dead letters that can be looked at and retried, and never dispatched by themselves."""
    await writing.store(unit("a", 1), unit("b", 2, trigger_id="u"))
    await pass_time(store, 100)
    await writing.store(unit("c", 3))
    assert await store.events.expire(50, trigger_id="t") == 1
    assert [event.payload for event in await store.outbox.claim("me", 10, 60)] == [2, 3]
    record = await store.events.show("t:a:0")
    assert record is not None
    assert (record.state, record.last_answer) == (EventState.DEAD, "older than 50 s, and not dispatched")
    assert await store.events.retry(EventFilter(identities=["t:a:0"])) == 1


async def test_many_events_are_changed_in_batches(store: Store, writing: Any, unit: MakeUnit) -> None:
    """More than fit into one transaction are changed all the same, and counted."""
    await writing.store(*(unit(str(n), n, n) for n in range(1250)))
    assert await store.events.purge(EVERYTHING) == 2500
    assert (await store.outbox.backlog()).pending == 0


@pytest.mark.parametrize("cause", ["rejected", "failed"])
async def test_a_forgotten_dead_letter_is_derived_when_it_comes_again(
    store: Store, writing: Any, unit: MakeUnit, cause: Any
) -> None:
    """Once the filter is mended, its dead letters can be let in again; the letter stays on record."""
    await writing.store(unit("m", dead=DeadLetter(cause, "no")), unit("n", dead=DeadLetter(cause, "no")))
    (_, first) = await store.dead_letters.find()
    assert await store.dead_letters.forget([first.id, 99]) == 1
    await writing.store(unit("m", "now"), unit("n", "now"))
    assert list(await states(store)) == ["t:m:0.g1"]
    assert len(await store.dead_letters.find()) == 2
