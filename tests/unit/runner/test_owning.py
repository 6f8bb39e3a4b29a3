"""Triggers without a stream: owned by a lease, finished when they fired and returned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace.runner import Phase
from headrace.store import TriggerState
from headrace.testing.virtual_time import in_virtual_time
from headrace.triggers.base import BaseTrigger, TriggerEvent
from tests.unit.runner.fakes import FakeStore, Stage


class Running(BaseTrigger):
    """A `run()` made of a function."""

    def __init__(self, function: Callable[[], AsyncIterator[TriggerEvent]], life: list[str]) -> None:
        super().__init__()
        self.function = function
        self.life = life

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Running", {}

    def run(self) -> AsyncIterator[TriggerEvent]:
        return self.function()

    async def cleanup(self) -> None:
        self.life.append("cleanup")

    async def on_kill(self) -> None:
        self.life.append("on_kill")


def stage_of(function: Callable[[], AsyncIterator[TriggerEvent]], store: FakeStore | None = None) -> Stage:
    stage = Stage(store=store)
    stage.streams = []
    stage.add_streamless("t", lambda: Running(function, stage.life))
    return stage


@in_virtual_time
async def test_a_run_that_returns_after_an_event_has_finished_over_a_restart() -> None:
    """Finished is durable, and said only when the event is stored."""
    runs: list[int] = []

    async def once() -> AsyncIterator[TriggerEvent]:
        runs.append(1)
        yield TriggerEvent("done", dedupe_key="moment")

    stage = stage_of(once)
    async with stage.running() as runner:
        stage.writer.withheld = {"t"}
        await asyncio.sleep(5)
        assert runner.status().triggers["t"].state is TriggerState.ACTIVE
        stage.writer.withheld = set()
        stage.writer.write()
        await stage.until(lambda: runner.status().triggers["t"].phase is Phase.FINISHED)
    async with stage.running() as runner:
        await asyncio.sleep(60)
        assert runner.status().triggers["t"].state is TriggerState.FINISHED
    assert len(runs) == 1
    assert stage.store.payloads("t") == ["done"]
    assert stage.store.units[0].events[0].dedupe_key == "moment"
    assert stage.store.leases.held == {}
    assert stage.life == ["cleanup"]


@in_virtual_time
async def test_a_run_that_raises_or_returns_without_an_event_is_run_again() -> None:
    """A failed run is started again with backoff; its events go on counting under the same lease."""
    runs: list[float] = []

    async def shaky() -> AsyncIterator[TriggerEvent]:
        runs.append(asyncio.get_running_loop().time())
        if len(runs) == 1:
            return
        yield TriggerEvent(len(runs))
        if len(runs) == 2:
            raise ValueError("broken pipe")

    stage = stage_of(shaky)
    async with stage.running() as runner:
        await stage.until(lambda: runner.status().triggers["t"].phase is Phase.FINISHED)
        assert runner.status().triggers["t"].restarts == 2
    assert stage.store.payloads("t") == [2, 3]
    assert [(unit.lease_token, unit.first_index) for unit in stage.store.units] == [(1, 0), (1, 1)]
    assert [repr(error) for _, error in stage.observer.restarts] == [
        "RuntimeError('run() returned without an event')",
        "ValueError('broken pipe')",
    ]
    assert stage.life == ["cleanup"] * 3


@in_virtual_time
async def test_one_of_two_replicas_runs_it_and_the_other_takes_over() -> None:
    """The lease's holder runs it; when that one stops, the other begins under a new token."""
    store = FakeStore()
    running: list[str] = []

    def ticking(name: str) -> Callable[[], AsyncIterator[TriggerEvent]]:
        async def tick() -> AsyncIterator[TriggerEvent]:
            running.append(name)
            while True:
                yield TriggerEvent(name)
                await asyncio.sleep(10)

        return tick

    first, second = stage_of(ticking("first"), store), stage_of(ticking("second"), store)
    async with second_after(first, second):
        await asyncio.sleep(100)
        assert running == ["first"]
        assert second.runner.status().triggers["t"].phase is Phase.STANDBY
        await first.runner.stop(10)
        await second.until(lambda: running == ["first", "second"], timeout=10)
    tokens = [unit.lease_token for unit in store.units]
    assert tokens == sorted(tokens)  # type: ignore[type-var]
    assert len(set(tokens)) == 2


class second_after:  # noqa: N801
    """Starts the first runner, then the second; stops the second."""

    def __init__(self, first: Stage, second: Stage) -> None:
        self.first = first
        self.second = second

    async def __aenter__(self) -> None:
        self.first.runner = self.first.make_runner()
        await self.first.runner.start()
        await asyncio.sleep(1)
        self.second.runner = self.second.make_runner()
        await self.second.runner.start()

    async def __aexit__(self, *_: object) -> None:
        await self.second.runner.stop(10)


@in_virtual_time
async def test_a_lost_lease_stops_the_run() -> None:
    """Who cannot renew in time stops before another may begin, and runs again when it owns the trigger again."""
    cancelled: list[float] = []
    started: list[float] = []

    async def waits() -> AsyncIterator[TriggerEvent]:
        started.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(1e6)
        finally:
            cancelled.append(asyncio.get_running_loop().time())
        yield TriggerEvent(None)

    stage = stage_of(waits)
    async with stage.running() as runner:
        await asyncio.sleep(1)
        stage.store.leases.available = False
        await stage.until(lambda: cancelled, timeout=60)
        expires = max(until for _, until in stage.store.leases.held.values())
        assert cancelled[0] < max(expires, 40.0)
        stage.store.leases.available = True
        await stage.until(lambda: len(started) == 2)
        assert runner.status().triggers["t"].restarts == 0  # the trigger did not fail


@in_virtual_time
async def test_a_lease_taken_over_stops_the_run_at_the_next_renewal() -> None:
    """The fence: a process that was frozen finds its lease gone, and stops."""
    cancelled: list[int] = []

    async def waits() -> AsyncIterator[TriggerEvent]:
        try:
            await asyncio.sleep(1e6)
        finally:
            cancelled.append(1)
        yield TriggerEvent(None)

    stage = stage_of(waits)
    async with stage.running() as runner:
        await asyncio.sleep(1)
        stage.store.leases.held.clear()
        await stage.store.leases.acquire("trigger:t", "another", 1000.0)
        await stage.until(lambda: cancelled, timeout=15)
        await stage.until(lambda: runner.status().triggers["t"].phase is Phase.STANDBY)


@in_virtual_time
async def test_removing_a_streamless_trigger_kills_it() -> None:
    """`on_kill` of the running instance, then `cleanup`; the lease is free at once."""

    async def waits() -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(1e6)
        yield TriggerEvent(None)

    stage = stage_of(waits)
    async with stage.running():
        await asyncio.sleep(1)
        await stage.store.triggers.set_state("t", TriggerState.REMOVED)
        await asyncio.sleep(1)
        assert stage.life == ["on_kill", "cleanup"]
        assert stage.store.leases.held == {}


@in_virtual_time
async def test_x19_what_the_store_refuses_of_a_run_is_a_dead_letter() -> None:
    """X19: also without a stream; the trigger has fired."""

    async def once() -> AsyncIterator[TriggerEvent]:
        yield TriggerEvent({"n": 1})

    stage = stage_of(once)
    async with stage.running() as runner:
        stage.writer.refuses = lambda unit: "an object" if unit.dead is None else None
        await stage.until(lambda: runner.status().triggers["t"].phase is Phase.FINISHED)
    (unit,) = stage.store.dead("t")
    assert unit.dead is not None
    assert unit.dead.cause == "unstorable"


@in_virtual_time
async def test_a_run_that_fires_without_end_waits_for_the_store() -> None:
    """Memory is bounded while the store is away."""
    fired: list[int] = []

    async def torrent() -> AsyncIterator[TriggerEvent]:
        while True:
            fired.append(1)
            yield TriggerEvent(None)

    stage = stage_of(torrent)
    runner = stage.runner = stage.make_runner()
    await runner.start()
    stage.writer.go(away=True)
    await asyncio.sleep(10)
    assert len(fired) == 10_001
    await runner.stop(5)
