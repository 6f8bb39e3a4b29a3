"""Payloads go, identities stay as long as their message may come again."""

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, func, select

from headrace.store import DeadLetter, EventFilter, EventState, Store, Swept, Unit
from headrace.store.schema import metadata
from headrace.triggers.base import TriggerEvent

MakeUnit = Callable[..., Unit]
PassTime = Callable[[Store, float], Awaitable[None]]
DAY = 86400.0


async def rows(store: Store) -> dict[str, int]:
    def job(connection: Connection) -> dict[str, int]:
        return {
            table.name.removeprefix("headrace_"): connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in metadata.sorted_tables
        }

    return await store.database.read(job)


async def deliver_all(store: Store) -> None:
    for event in await store.outbox.claim("me", 1000, 60):
        assert await store.outbox.mark_delivered(event, "200")


async def test_payloads_go_first_and_identities_stay(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """After `retention` a delivered event is a name without content, and a redelivery still changes nothing."""
    await writing.store(unit("m", {"secret": 1}, TriggerEvent(2, "k")), unit("waits", 3))
    for event in await store.outbox.claim("me", 2, 60):
        await store.outbox.mark_delivered(event)
    await pass_time(store, DAY + 1)
    assert await store.sweep(retention=DAY) == Swept(payloads=2, identities=0, dead_letters=0, attempts=0)
    await writing.store(unit("m", "other"), unit("n", TriggerEvent("other", "k"), "new"))
    found = await store.events.find(EventFilter(states=[EventState.DELIVERED]))
    assert [(record.event.payload, record.event.has_payload) for record in found] == [(None, False)] * 2
    assert len(await store.events.find()) == 4
    assert (await rows(store))["attempt"] == 0


async def test_identities_go_when_nothing_can_come_again(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """They are counted from when the last event of their unit was settled, not from when it was stored."""
    await writing.store(unit("m", 1, 2), unit("skipped", TriggerEvent(1, "k")), unit("same key", TriggerEvent(1, "k")))
    (first, *_) = await store.outbox.claim("me", 1, 60)
    await store.outbox.mark_delivered(first)
    await pass_time(store, 20 * DAY)
    await deliver_all(store)
    swept = await store.sweep(retention=DAY)
    assert (swept.payloads, swept.identities) == (1, 1)  # of the unit whose one event was dropped when it was stored
    await pass_time(store, 13 * DAY)
    assert (await store.sweep(retention=DAY)).identities == 0
    await pass_time(store, 2 * DAY)
    assert (await store.sweep(retention=DAY)).identities == 2
    assert (await rows(store))["event"] == 0
    await writing.store(unit("m", "again"))
    assert [record.event.payload for record in await store.events.find()] == ["again"]


async def test_what_waits_is_never_swept(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """Pending and claimed events stay whole, however old they are."""
    await writing.store(unit("m", 1), unit("n", 2))
    await store.outbox.claim("me", 1, 60)
    await pass_time(store, 1000 * DAY)
    assert await store.sweep(retention=0) == Swept(0, 0, 0, 0)
    assert len(await store.outbox.claim("me", 10, 60)) == 2


async def test_the_dead_are_kept_longer(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """A dead event can be retried, and a dead letter read, until `dead_retention` is over."""
    await writing.store(unit("m", 1), unit("letter", dead=DeadLetter("failed", "no")))
    (event,) = await store.outbox.claim("me", 1, 60)
    await store.outbox.mark_dead(event, "404")
    await pass_time(store, 20 * DAY)
    assert await store.sweep(retention=DAY) == Swept(0, 0, 0, 0)
    assert await store.events.retry(EventFilter(ids=[event.id])) == 1
    (event,) = await store.outbox.claim("me", 1, 60)
    await store.outbox.mark_dead(event, "404")
    await pass_time(store, 11 * DAY)
    assert await store.sweep(retention=DAY) == Swept(payloads=0, identities=1, dead_letters=1, attempts=0)
    await pass_time(store, 20 * DAY)
    assert await store.sweep(retention=DAY) == Swept(payloads=1, identities=1, dead_letters=0, attempts=0)
    assert not (await rows(store))["unit"]


async def test_a_sweep_takes_small_steps_and_all_of_it(store: Store, writing: Any, unit: MakeUnit, pass_time: PassTime) -> None:
    """However small its batches, a sweep gets through, past what must stay."""
    await writing.store(*(unit(str(n), n) for n in range(50)))
    for event in await store.outbox.claim("me", 40, 60):
        await store.outbox.mark_delivered(event)
    for n in range(7):
        await store.attempts.bump("t", f"skipped {n}", "ValueError")
    await pass_time(store, 20 * DAY)
    assert await store.sweep(retention=DAY, batch=3) == Swept(payloads=40, identities=40, dead_letters=0, attempts=7)
    assert (await rows(store))["unit"] == 10
