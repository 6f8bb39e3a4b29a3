"""Bytes that the engine keeps for an event in flight, and for a trigger that has nothing to do. Counted by tracemalloc."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from benchmarks.goals import Goal, Report
from headrace import BaseEventTrigger, SharedStreamManager, SharedStreamProducer
from headrace.runner import Runner, StreamSpec, TriggerSpec
from headrace.store import Store, TriggerDefinition
from headrace.testing.memory import MemoryBroker
from headrace.testing.waiting import eventually
from headrace.triggers import PatternTrigger

EVENTS = 1_000
SUBSCRIBERS = {100: (1, 10, 100, 1000), 1: (1, 10, 100)}
"""By size of batch."""
IN_FLIGHT = Goal("bytes per event in flight besides raw and payload, any number of subscribers, batch {}", 400, 64, " B", "less")
IDLE = Goal("1000 idle triggers", 10, 3, " MB", "less")


class Held(SharedStreamProducer):
    """Hands out everything at once; the first event is never settled, so all stay in flight."""

    def __init__(self, raws: list[Any], payloads: list[Any], batch: int) -> None:
        self._pairs = zip(raws, payloads, strict=True)
        self._batch = batch
        self.may_begin = asyncio.Event()

    async def open_batches(self) -> AsyncIterator[list[tuple[Any, Any]]]:
        first = next(self._pairs)
        yield [first]  # everybody waits for more than a first event when measuring begins
        await self.may_begin.wait()
        while batch := [pair for _, pair in zip(range(self._batch), self._pairs, strict=False)]:
            yield batch
        await asyncio.Event().wait()

    async def advance(self, batch: Any) -> None:
        raise AssertionError("the first event is in hand: nothing may be settled")


class Watching(BaseEventTrigger):
    """Stops at the event that it is told to stop at; None: at none."""

    producer: Held

    def __init__(self, stop_at: int | None) -> None:
        super().__init__()
        self._stop_at = stop_at
        self.seen = 0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.Watching", {}

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Held:
        return cls.producer

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for _ in shared_stream:
            self.seen += 1
            if self.seen == self._stop_at:
                await asyncio.Event().wait()
            if False:
                yield


async def bytes_in_flight(subscribers: int, batch: int) -> float:
    """Bytes an event, with one subscriber at the first event and the others through all of them (where there are others)."""
    raws = [object() for _ in range(EVENTS)]
    payloads = [object() for _ in range(EVENTS)]
    manager = SharedStreamManager(max_subscriber_queue=2 * EVENTS)
    triggers = [Watching(None if number else 1) for number in range(subscribers)]
    Watching.producer = Held(raws, payloads, batch)

    async def watch(number: int) -> None:
        stream = manager.subscribe(trigger_id=number, trigger=triggers[number], key="bench")
        async for _ in triggers[number].filter_shared_stream(stream):
            pass

    def everywhere() -> bool:
        stream = manager.stream("bench")
        return stream is not None and stream.ledger.in_flight == EVENTS and all(each.seen == EVENTS for each in triggers[1:])

    with Traced() as traced:
        tasks = [asyncio.create_task(watch(number)) for number in range(subscribers)]
        await eventually(lambda: all(each.seen for each in triggers))
        before = traced.bytes()
        Watching.producer.may_begin.set()
        await eventually(everywhere, 120.0)
        grown = traced.bytes() - before
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await manager.stop_all()
    return grown / EVENTS


class Traced:
    """Counts, inside the block, the bytes that live."""

    def __enter__(self) -> Self:
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        tracemalloc.stop()

    def bytes(self) -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


async def idle_triggers(count: int) -> int:
    """Bytes of a runner with so many pattern triggers that wait on one stream."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        store = await Store.open(f"sqlite:///{Path(folder) / 'headrace.db'}")
        with Traced() as traced:
            stream = StreamSpec("orders", "memory", None, MemoryBroker().create_producer)
            runner = Runner(store, [stream], [_pattern(number) for number in range(count)])
            await runner.start()
            await eventually(lambda: runner.status().streams["orders"].subscribers == count, 60.0)
            grown = traced.bytes()
        await runner.stop(10.0)
        await store.aclose()
        return grown


def _pattern(number: int) -> TriggerSpec:
    match = {"region": [f"r{number}"], "amount": [{"numeric": [">", number]}]}
    definition = TriggerDefinition(f"trigger-{number}", "headrace.triggers.PatternTrigger", {"match": match}, "orders")
    return TriggerSpec(definition, lambda: PatternTrigger(match))


def report() -> Report:
    found = Report("memory")
    for batch, cohorts in SUBSCRIBERS.items():
        figures = [asyncio.run(bytes_in_flight(subscribers, batch)) for subscribers in cohorts]
        goal = replace(IN_FLIGHT, what=IN_FLIGHT.what.format(batch))
        found.add(
            goal,
            max(figures),
            ", ".join(f"{figure:.0f} B with {subscribers}" for figure, subscribers in zip(figures, cohorts, strict=True)),
        )
    few = asyncio.run(idle_triggers(1))
    found.add(IDLE, (asyncio.run(idle_triggers(1001)) - few) / 1e6)
    return found
