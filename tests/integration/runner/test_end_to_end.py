"""The runner on the real engine, a real store (SQLite and PostgreSQL) and the local broker, its producer in a thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from headrace_local import LocalConfig, LocalConnector, QueueFile
from headrace_local.handle import Handle

from headrace.connector import Message
from headrace.errors import StoreUnavailable
from headrace.runner import Observer, Phase, Runner, StreamSpec, TriggerSpec
from headrace.store import DeadLetterRecord, Store, TriggerDefinition, TriggerState, Unit
from headrace.streams.stream import StreamSettings
from headrace.streams.subscription import reject_shared_stream_event
from headrace.testing.waiting import eventually
from headrace.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from headrace.triggers.temporal import DateTimeTrigger

Filter = Callable[[AsyncIterator[Any]], AsyncIterator[TriggerEvent]]


class Watching(BaseEventTrigger):
    """A trigger made of a function."""

    def __init__(self, function: Filter) -> None:
        super().__init__()
        self.function = function

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Watching", {}

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        return self.function(shared_stream)


class Counting(Observer):
    def __init__(self) -> None:
        self.stored: list[Unit] = []
        self.blocked: list[tuple[str | None, float]] = []

    def on_stored(self, units: Any) -> None:
        self.stored += units

    def on_loop_blocked(self, trigger_id: str | None, seconds: float) -> None:
        self.blocked.append((trigger_id, seconds))


class Bench:
    """A store and a queue that outlive the runners of a test."""

    def __init__(self, database_url: str, directory: Path) -> None:
        self.url = database_url
        self.connector = LocalConnector()
        self.config = LocalConfig(path=str(directory / "queue.db"), backoff=0.05, max_backoff=0.2, visibility_timeout=1.0)
        self.settings = StreamSettings(ack_timeout=20.0, cohort_grace_period=5.0, max_parallel_advances=64)
        self.triggers: dict[str, TriggerSpec] = {}
        self.observer = Counting()

    def add(self, name: str, function: Filter, **options: Any) -> None:
        definition = TriggerDefinition(name, "tests.Watching", {}, "orders")
        self.triggers[name] = TriggerSpec(definition, lambda: Watching(function), **options)

    def add_streamless(self, name: str, build: Callable[[], BaseTrigger]) -> None:
        self.triggers[name] = TriggerSpec(TriggerDefinition(name, "tests.Streamless", {}), build)

    def make_runner(self, store: Store) -> Runner:
        stream = StreamSpec("orders", "local", self.config, lambda: self.connector.create_producer(self.config), self.settings)
        return Runner(store, [stream], self.triggers.values(), observer=self.observer)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Runner, Store]]:
        store = await Store.open(self.url)
        try:
            runner = self.make_runner(store)
            await runner.start()
            try:
                yield runner, store
            finally:
                await runner.stop(10)
        finally:
            await store.aclose()

    async def publish(self, *values: bytes, keys: int = 0) -> None:
        await self.connector.publish(
            self.config,
            [
                Message(value=value, id="", source="", timestamp=0.0, key=b"k%d" % (n % keys) if keys else None)
                for n, value in enumerate(values)
            ],
        )

    async def left(self) -> float:
        """Messages that the broker still has."""
        handle = Handle.get(self.config.path)
        try:
            stats = await handle.run(QueueFile.stats, self.config.queue)
        finally:
            await handle.aclose()
        return float(stats["ready"] + stats["delayed"] + stats["in_flight"])

    async def settled(self, seconds: float = 30.0) -> None:
        async def nothing_left() -> bool:
            return await self.left() == 0

        await eventually(nothing_left, seconds)


@pytest.fixture
def bench(database_url: str, tmp_path: Path) -> Bench:
    return Bench(database_url, tmp_path)


async def payloads(store: Store, trigger_id: str) -> list[Any]:
    """What a trigger derived, in the order it was stored."""
    found: list[Any] = []
    before = None
    while page := await store.events.find(before=before, limit=1000):
        found += [record.event for record in page if record.event.trigger_id == trigger_id]
        before = page[-1].event.id
    return [event.payload for event in sorted(found, key=lambda event: event.id)]


async def dead(store: Store, trigger_id: str) -> list[DeadLetterRecord]:
    letters = await store.dead_letters.find(trigger_id=trigger_id, limit=1000)
    shown = [await store.dead_letters.show(letter.id) for letter in letters]
    return [letter for letter in shown if letter is not None]


def number(message: Message) -> int:
    assert message.value is not None
    return int(message.value)


async def echo(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
    async for message in stream:
        yield TriggerEvent(number(message))


async def test_a_thousand_messages_through_three_triggers(bench: Bench) -> None:
    """Every message is derived once by each trigger that wants it, in its lane's order, rejected ones are dead letters, and the
    broker is empty at the end."""

    async def only_even(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            if number(message) % 2 == 0:
                yield TriggerEvent({"even": number(message)})

    async def rejects_hundreds(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            if number(message) % 100 == 0:
                reject_shared_stream_event("a round number")
            if False:
                yield TriggerEvent(None)

    bench.add("all", echo)
    bench.add("even", only_even)
    bench.add("strict", rejects_hundreds)
    async with bench.running() as (runner, store):
        await bench.publish(*(b"%d" % n for n in range(1000)), keys=7)
        await bench.settled()
        assert runner.status().problems == []
        derived = await payloads(store, "all")
        assert sorted(derived) == list(range(1000))
        for lane in range(7):
            in_lane = [n for n in derived if n % 7 == lane]
            assert in_lane == sorted(in_lane)
        assert sorted(payload["even"] for payload in await payloads(store, "even")) == list(range(0, 1000, 2))
        letters = await dead(store, "strict")
        assert sorted(number(letter.message) for letter in letters if letter.message) == list(range(0, 1000, 100))
        assert {(letter.cause, letter.reason) for letter in letters} == {("rejected", "a round number")}


async def test_x3_what_a_dead_process_left_is_finished_by_the_next_without_doubles(bench: Bench) -> None:
    """X3: a runner that vanishes at any moment: what it stored and did not settle comes again, and no row is doubled."""
    bench.add("all", echo)
    await bench.publish(*(b"%d" % n for n in range(300)), keys=3)
    store = await Store.open(bench.url)
    runner = bench.make_runner(store)
    await runner.start()
    await eventually(lambda: bench.observer.stored)
    vanish(runner)
    await store.aclose()
    async with bench.running() as (_, store):
        await bench.settled()
        assert Counter(await payloads(store, "all")) == Counter(range(300))


def vanish(runner: Runner) -> None:
    """End a runner as SIGKILL would, as far as one process can: no drain, no settlement, nobody is told."""
    for run in runner._runs.values():
        assert run.task is not None
        run.task.cancel()
    for helper in runner._helpers:
        helper.cancel()
    assert runner._watch is not None
    runner._watch.stop()
    (source,) = runner._sources
    assert source.producer is not None
    source.producer._thread.request_stop()
    assert source.stream is not None
    source.stream.task.cancel()


async def test_x10_x18_attempts_are_durable_and_end_in_a_dead_letter(bench: Bench) -> None:
    """X10, X18: a filter that raises on one message gets it again, over a restart too, until it is a dead letter; the
    others of its lane follow in order."""
    tries: list[str] = []

    async def poisoned(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            if number(message) == 1:
                tries.append(message.id)
                raise ValueError("cannot parse this one")
            yield TriggerEvent(number(message))

    bench.add("a", poisoned, max_attempts=3)
    await bench.publish(b"0", b"1", b"2", keys=1)
    async with bench.running() as (_, store):
        await eventually(lambda: tries)

        async def counted() -> bool:
            return await store.attempts.get("a", tries[0]) == len(tries)

        await eventually(counted)
    before = len(tries)
    assert 1 <= before < 3
    async with bench.running() as (_, store):
        await bench.settled()
        (letter,) = await dead(store, "a")
        assert (letter.cause, letter.reason, letter.attempts) == ("failed", "ValueError('cannot parse this one')", 3)
        assert 'raise ValueError("cannot parse this one")' in (letter.traceback or "")
        assert letter.message is not None
        assert letter.message.value == b"1"
        assert await payloads(store, "a") == [0, 2]
        assert await store.attempts.get("a", letter.message_id) == 0
    assert len(tries) == 3


class Odd:
    """An object that no JSON has."""


@pytest.mark.parametrize(
    "payload",
    [b"bytes", float("nan"), "a NUL \x00 in it", Odd(), "x" * (10 * 2**20)],
    ids=["bytes", "NaN", "NUL", "object", "10 MB"],
)
async def test_x19_a_payload_that_cannot_be_stored(bench: Bench, payload: Any) -> None:
    """X19: that delivery is refused with a reason and is a dead letter; the trigger and the stream live."""

    async def derives(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield TriggerEvent(payload if number(message) == 1 else number(message))

    bench.add("a", derives)
    async with bench.running() as (runner, store):
        await bench.publish(b"0", b"1", b"2", keys=1)
        await bench.settled()
        (letter,) = await dead(store, "a")
        assert letter.cause == "unstorable"
        assert letter.message is not None
        assert letter.message.value == b"1"
        assert await payloads(store, "a") == [0, 2]
        assert runner.status().triggers["a"].restarts == 0


async def test_users_pause_resume_and_remove_from_another_process(bench: Bench) -> None:
    """`headrace triggers` changes states in the store; the runner acts within a second."""
    bench.add("a", echo)
    bench.add("b", echo)
    other = await Store.open(bench.url)
    try:
        async with bench.running() as (runner, store):

            def phase() -> Phase:
                return runner.status().triggers["a"].phase

            await bench.publish(b"0")
            await bench.settled()
            await other.triggers.set_state("a", TriggerState.PAUSED)
            await eventually(lambda: phase() is Phase.STOPPED, 2.0)
            await bench.publish(b"1")
            await bench.settled()
            await other.triggers.set_state("a", TriggerState.ACTIVE)
            await eventually(lambda: phase() is Phase.RUNNING, 2.0)
            await bench.publish(b"2")
            await bench.settled()
            await other.triggers.set_state("a", TriggerState.REMOVED)
            await eventually(lambda: phase() is Phase.STOPPED, 2.0)
            assert await payloads(store, "a") == [0, 2]
            assert await payloads(store, "b") == [0, 1, 2]
    finally:
        await other.aclose()


async def test_a_moment_fires_once_though_two_runners_wait_for_it(bench: Bench) -> None:
    """A streamless trigger is run by one of two replicas; it fires, is finished for both, and never again."""
    moment = datetime.now(UTC) + timedelta(seconds=0.5)
    bench.add_streamless("soon", lambda: DateTimeTrigger(moment))
    stores = [await Store.open(bench.url), await Store.open(bench.url)]
    runners = [bench.make_runner(store) for store in stores]
    try:
        for runner in runners:
            await runner.start()
        await eventually(lambda: all(runner.status().triggers["soon"].state is TriggerState.FINISHED for runner in runners))
        assert await payloads(stores[0], "soon") == [{"moment": moment.isoformat()}]
    finally:
        for runner in runners:
            await runner.stop(5)
        for store in stores:
            await store.aclose()
    async with bench.running() as (runner, store):
        assert runner.status().triggers["soon"].state is TriggerState.FINISHED
        assert len(await payloads(store, "soon")) == 1


async def test_k20_a_filter_that_blocks_the_loop_is_named_and_leases_live_on(bench: Bench) -> None:
    """K20: the broker's leases (1 s here) are extended while a filter blocks the engine's loop for longer; it is named."""
    seen: list[int] = []

    async def burns(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            seen.append(number(message))
            if number(message) == 0:
                time.sleep(2.5)  # noqa: ASYNC251  # what is tested
            yield TriggerEvent(number(message))

    bench.add("burner", burns)
    async with bench.running() as (_, store):
        await bench.publish(b"0", b"1")
        await bench.settled()
        assert await payloads(store, "burner") == [0, 1]
        await eventually(lambda: "burner" in dict(bench.observer.blocked))
    assert dict(bench.observer.blocked)["burner"] > 2
    assert sorted(seen) == [0, 1]  # nothing was handed out a second time


async def test_x2_a_store_that_is_away_loses_and_doubles_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """X2: while the store fails nothing is settled; when it is back everything is, once."""
    bench.add("a", echo)
    bench.add("b", echo)
    async with bench.running() as (runner, store):
        await bench.publish(*(b"%d" % n for n in range(50)))
        await bench.settled()
        fail_until(store, monkeypatch, attempts=5)
        await bench.publish(*(b"%d" % n for n in range(50, 100)))
        await bench.settled()
        for trigger_id in ("a", "b"):
            assert Counter(await payloads(store, trigger_id)) == Counter(range(100))
        assert runner.status().problems == []


def fail_until(store: Store, monkeypatch: pytest.MonkeyPatch, attempts: int) -> None:
    """Make the next so many transactions fail as with a lost connection."""
    write = store.database.write
    failures = iter(range(attempts))

    async def flaky(*args: Any, **kwargs: Any) -> Any:
        if next(failures, None) is not None:
            raise StoreUnavailable("the connection is lost")
        return await write(*args, **kwargs)

    monkeypatch.setattr(store.database, "write", flaky)
