"""How long after a confirmation the broker hears of it, under half of the load that the engine can take. Wall time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from benchmarks.goals import Goal, Report
from headrace import BaseEventTrigger, SharedStreamManager, SharedStreamProducer, TriggerEvent
from headrace.testing.waiting import eventually

SUBSCRIBERS = 100
BATCH = 100
GOAL = Goal("confirm → advance, p99, at half load, 100 subscribers", 2, 1, " ms", "less")


def quantile(figures: Iterable[float], share: float) -> float:
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Paced(SharedStreamProducer):
    """Polls a batch every `interval` seconds (0: as soon as little is in flight), `batches` in all; notes when events settled."""

    def __init__(self, interval: float, batches: int) -> None:
        self._interval = interval
        self._count = batches
        self.settled: dict[int, float] = {}

    async def open_batches(self) -> AsyncIterator[list[tuple[int, int]]]:
        clock = asyncio.get_running_loop().time
        due = clock()
        for number in range(self._count):
            while (number - 5) * BATCH > len(self.settled):
                await asyncio.sleep(0)
            yield [(event, event) for event in range(number * BATCH, (number + 1) * BATCH)]
            due += self._interval
            await asyncio.sleep(max(0.0, due - clock()))
        await asyncio.Event().wait()

    async def advance(self, batch: Any) -> None:
        now = time.perf_counter()
        self.settled.update((item.broker_payload, now) for item in batch)


class Watching(BaseEventTrigger):
    producer: Paced

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.Watching", {}

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Paced:
        return cls.producer

    async def filter_shared_stream(self, shared_stream: AsyncIterator[int]) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            if event % BATCH == BATCH - 1:
                yield TriggerEvent(event)


async def play(interval: float, batches: int) -> tuple[float, list[float]]:
    """Seconds in all, and from the confirmation of each batch's last event by the last subscriber until it was settled."""
    Watching.producer = producer = Paced(interval, batches)
    manager = SharedStreamManager()
    confirmed: dict[int, float] = {}
    unstored: dict[int, list[int]] = {}
    loop = asyncio.get_running_loop()

    def confirm(event: int) -> None:
        write_ids = unstored.pop(event)
        confirmed[event] = time.perf_counter()
        manager.confirm_persisted(write_ids)

    async def watch(number: int) -> None:
        stream = manager.subscribe(trigger_id=number, trigger=Watching(), key="bench")
        async for derived in Watching().filter_shared_stream(stream):
            write_id = manager.bind_pending_event(trigger_id=number, key="bench")
            assert write_id is not None
            waiting = unstored.setdefault(derived.payload, [])
            waiting.append(write_id)
            if len(waiting) == SUBSCRIBERS:
                loop.call_later(0.003, confirm, derived.payload)  # as long as a store takes

    tasks = [asyncio.create_task(watch(number)) for number in range(SUBSCRIBERS)]
    began = time.perf_counter()
    await eventually(lambda: len(producer.settled) == batches * BATCH, 120.0)
    taken = max(producer.settled.values()) - began
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await manager.stop_all()
    return taken, [producer.settled[event] - moment for event, moment in confirmed.items()]


def report() -> Report:
    found = Report("latency")
    flat_out, _ = asyncio.run(play(0.0, 200))
    interval = 2 * flat_out / 200
    _, delays = asyncio.run(play(interval, 1000))
    detail = f"p50 {quantile(delays, 0.5) * 1e3:.2f} ms, {BATCH / interval:,.0f} events/s"
    found.add(GOAL, quantile(delays, 0.99) * 1e3, detail)
    return found
