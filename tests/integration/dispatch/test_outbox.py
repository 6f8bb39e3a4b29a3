"""The dispatcher on the real store, with a receiver that fails."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from headrace.dispatch import DispatchConfig, Dispatcher, Target, TargetConfig
from headrace.dispatch.targets.webhook import WebhookConfig, WebhookTarget
from headrace.store import EventFilter, EventState, Store, StoredEvent, Unit, Writer
from headrace.testing.waiting import eventually
from headrace.triggers.base import TriggerEvent

QUICK = DispatchConfig(lease_seconds=20, poll_interval=0.1, retry_first=0.05, retry_longest=0.5)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    store = await Store.open(database_url)
    yield store
    await store.aclose()


async def put(store: Store, count: int, trigger_id: str = "eu-orders", *, wake: Callable[[], None] = lambda: None) -> None:
    """Store so many events of a trigger, each of a message of its own."""
    numbers = itertools.count()
    refused: list[Exception] = []
    writer = Writer(store, on_stored=lambda units: wake(), on_refused=lambda unit, error: refused.append(error))
    for number in itertools.islice(numbers, count):
        event = TriggerEvent({"n": number})
        writer.submit(Unit(trigger_id, "orders", f"orders/0/{number}/0", [event], published_at=1_700_000_000.0))
    await writer.flush()
    await writer.aclose()
    assert not refused


@asynccontextmanager
async def dispatching(
    store: Store, targets: dict[str, Target], config: DispatchConfig = QUICK, **options: Any
) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(store, targets, config=config, **options)
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        await dispatcher.stop(5.0, drain=False)


def webhook(receiver: Any, **config: Any) -> WebhookTarget:
    return WebhookTarget(WebhookConfig(**{"url": receiver.url, "timeout": 1.0, **config}))


async def states(store: Store) -> dict[EventState, int]:
    found: Counter[EventState] = Counter()
    for (_, state), count in (await store.events.counts()).items():
        found[state] += count
    return {state: count for state, count in found.items() if count}


async def all_are(store: Store, state: EventState, count: int) -> None:
    async def reached() -> bool:
        return await states(store) == {state: count}

    await eventually(reached, 40)


def ids(receiver: Any) -> Counter[str]:
    return Counter(orjson.loads(request.body)["id"] for request in receiver.requests)


class Recording(Target):
    """A target in this process: `action` says how long a call takes and how it ends."""

    kind = "recording"

    def __init__(self, action: Callable[[StoredEvent], Awaitable[None]], **config: Any) -> None:
        super().__init__(TargetConfig(**{"timeout": 1.0, **config}))
        self._action = action
        self.calls: list[StoredEvent] = []

    async def deliver(self, event: StoredEvent) -> str:
        self.calls.append(event)
        await self._action(event)
        return "taken"


async def test_every_event_gets_through_a_receiver_that_fails(store: Store, receiver: Any) -> None:
    """Drops, resets, 500s, 429 with `Retry-After`, silence past the timeout: each event is delivered, under one id."""
    answers = itertools.count()

    async def flaky(request: Any) -> None:
        match next(answers) % 7:
            case 0:
                request.drop()
            case 1:
                await request.answer(500, b"broken")
            case 2:
                await request.answer(429, Retry_After="0")
            case 3:
                request.writer.write_eof()
                await asyncio.sleep(0.2)
            case 4:
                await asyncio.sleep(1.5)
            case _:
                await request.answer(200)

    receiver.behave = flaky
    async with dispatching(store, {"eu-orders": webhook(receiver)}) as dispatcher:
        await put(store, 60, wake=dispatcher.wake)
        await all_are(store, EventState.DELIVERED, 60)
    assert set(ids(receiver)) == {f"eu-orders:orders/0/{n}/0:0" for n in range(60)}


async def test_a_healthy_receiver_gets_each_event_once(store: Store, receiver: Any) -> None:
    """Nothing fails: one request an event, all of them woken, none polled for."""
    async with dispatching(store, {"eu-orders": webhook(receiver)}, QUICK.model_copy(update={"poll_interval": 60})) as dispatcher:
        await put(store, 300, wake=dispatcher.wake)
        await all_are(store, EventState.DELIVERED, 300)
    assert set(ids(receiver).values()) == {1}
    assert len(ids(receiver)) == 300


async def test_a_dead_event_keeps_every_answer(store: Store, receiver: Any) -> None:
    """After the last attempt: dead, with the answers of all attempts, oldest first."""
    receiver.behave = lambda request: request.answer(503, f"outage {len(receiver.requests)}".encode())
    async with dispatching(store, {"eu-orders": webhook(receiver, max_attempts=3)}):
        await put(store, 1)
        await all_are(store, EventState.DEAD, 1)
    record = await store.events.show("eu-orders:orders/0/0/0:0")
    assert record is not None
    assert [(attempt.outcome, attempt.answer) for attempt in record.history] == [
        ("retry", "HTTP 503: outage 1"),
        ("retry", "HTTP 503: outage 2"),
        ("dead", "attempt 3 was the last: HTTP 503: outage 3"),
    ]


async def test_x16_replicas_share_the_work_and_send_nothing_twice(store: Store, database_url: str) -> None:
    """X16: three dispatchers on one database, with calls long enough to overlap: each event is called once."""

    async def briefly(event: StoredEvent) -> None:
        await asyncio.sleep(0.02)

    targets = [Recording(briefly, max_concurrency=8) for _ in range(3)]
    others = [await Store.open(database_url) for _ in range(2)]
    try:
        await put(store, 400)
        async with (
            dispatching(store, {"eu-orders": targets[0]}),
            dispatching(others[0], {"eu-orders": targets[1]}),
            dispatching(others[1], {"eu-orders": targets[2]}),
        ):
            await all_are(store, EventState.DELIVERED, 400)
    finally:
        for other in others:
            await other.aclose()
    called = Counter(event.identity for target in targets for event in target.calls)
    assert set(called.values()) == {1}
    assert len(called) == 400
    assert all(target.calls for target in targets)


async def test_x16_the_claims_of_a_dead_replica_are_retaken_once(store: Store) -> None:
    """X16: somebody claimed the events and was never heard of again: when the claims expire each is delivered once."""

    async def at_once(event: StoredEvent) -> None:
        return None

    target = Recording(at_once)
    await put(store, 20)
    assert len(await store.outbox.claim("killed", 20, 0.5)) == 20
    async with dispatching(store, {"eu-orders": target}):
        await all_are(store, EventState.DELIVERED, 20)
    assert Counter(event.attempt for event in target.calls) == {2: 20}


async def test_x16_a_long_call_keeps_its_claim(store: Store) -> None:
    """X16: calls of almost a lease's length, with another dispatcher waiting for them to expire: each is called once."""

    async def long(event: StoredEvent) -> None:
        await asyncio.sleep(3.5)

    target = Recording(long, timeout=3.95, max_concurrency=16)
    config = DispatchConfig(lease_seconds=4, poll_interval=0.1)
    await put(store, 16)
    async with dispatching(store, {"eu-orders": target}, config), dispatching(store, {"eu-orders": target}, config):
        await all_are(store, EventState.DELIVERED, 16)
    assert len(target.calls) == 16


async def test_stop_gives_claims_back_for_the_next_one(store: Store) -> None:
    """A drain that runs out of time: the next dispatcher has the events at once, as their first attempt."""

    async def hang(event: StoredEvent) -> None:
        await asyncio.sleep(60)

    async def at_once(event: StoredEvent) -> None:
        return None

    hanging, healthy = Recording(hang, timeout=20), Recording(at_once)
    config = DispatchConfig(lease_seconds=30)
    await put(store, 10)
    dispatcher = Dispatcher(store, {"eu-orders": hanging}, config=config)
    dispatcher.start()
    await eventually(lambda: len(hanging.calls) == 10)
    await dispatcher.stop(0.5)
    async with dispatching(store, {"eu-orders": healthy}, config):
        await all_are(store, EventState.DELIVERED, 10)
    assert {event.attempt for event in healthy.calls} == {1}


async def test_a_hung_target_does_not_delay_another(store: Store) -> None:
    """The trigger with the oldest backlog hangs; the other's events go through meanwhile."""

    async def hang(event: StoredEvent) -> None:
        await asyncio.sleep(60)

    async def at_once(event: StoredEvent) -> None:
        return None

    hung, healthy = Recording(hang), Recording(at_once)
    await put(store, 500, "hung")
    async with dispatching(store, {"hung": hung, "healthy": healthy}) as dispatcher:
        await eventually(lambda: len(hung.calls) >= 32)
        await put(store, 100, "healthy", wake=lambda: dispatcher.wake(["healthy"]))

        async def delivered() -> bool:
            return not await store.events.find(
                EventFilter(trigger_id="healthy", states=[EventState.PENDING, EventState.DISPATCHING])
            )

        await eventually(delivered)
    assert len(healthy.calls) == 100


async def test_events_without_a_target_stay(store: Store) -> None:
    """What has no target in the config is neither claimed nor counted against."""

    async def at_once(event: StoredEvent) -> None:
        return None

    await put(store, 3, "gone")
    await put(store, 3, "here")
    async with dispatching(store, {"here": Recording(at_once)}):

        async def done() -> bool:
            return await states(store) == {EventState.DELIVERED: 3, EventState.PENDING: 3}

        await eventually(done)
    records = await store.events.find(EventFilter(trigger_id="gone"))
    assert [(record.state, record.event.attempt) for record in records] == [(EventState.PENDING, 0)] * 3


@pytest.mark.integration
async def test_a_database_that_is_killed_under_load_loses_and_doubles_nothing(own_server: Any, receiver: Any) -> None:
    """PostgreSQL dies while calls are under way, and comes back within the lease: results that waited for it are stored then,
    and each event was sent once."""
    server = own_server("postgresql")
    url = server.create_database()
    store = await Store.open(url)
    killed = asyncio.Event()

    async def slowly(request: Any) -> None:
        if len(receiver.requests) >= 60:
            killed.set()
        await asyncio.sleep(0.05)
        await request.answer(200)

    receiver.behave = slowly
    try:
        await put(store, 200)
        target = webhook(receiver, max_concurrency=8, timeout=10)
        async with dispatching(store, {"eu-orders": target}, DispatchConfig(lease_seconds=20)) as dispatcher:
            await asyncio.wait_for(killed.wait(), 20)
            await asyncio.to_thread(server.kill)
            await eventually(lambda: not dispatcher.status().store_available)
            await asyncio.to_thread(server.restart)
            await all_are(store, EventState.DELIVERED, 200)
    finally:
        await store.aclose()
    assert set(ids(receiver).values()) == {1}
    assert len(ids(receiver)) == 200
