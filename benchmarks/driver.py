"""Drives a shared-stream manager as fast as it goes, in two worlds: `python driver.py headrace|airflow`.

The same file, triggers and producer run on both managers; only the imports differ, and that ours may yield whole poll batches
where Airflow's can only yield events. It reads jobs from stdin, one JSON object a line, and answers each with one line, so that
jobs of the two worlds can alternate without an interpreter starting in between. Times are CPU seconds of this process: what
others do on the machine concerns them less.

A job: `subscribers`, `events`, `batch` (events a poll), `lanes`, and `indexed`: each subscriber wants the events of its own
number, and event n is of number `n % subscribers`, or with `nobody` of nobody's. Of 100 events that a subscriber lets through,
one derives something, which is confirmed at the loop's next turn. `bare` drains the same filters without any manager.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from typing import Any

WORLD = sys.argv[1]
if WORLD == "airflow":
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
    from airflow.triggers.shared_stream import SharedStreamManager, SharedStreamProducer
else:
    from headrace import BaseEventTrigger, SharedStreamManager, SharedStreamProducer, TriggerEvent

AHEAD = 700
"""Events that the source reads ahead of what is settled: a subscriber's queue takes them (Airflow fails who has a full one)."""


class Source(SharedStreamProducer):
    """Polls `batch` events at a time out of memory, and then lets the loop turn, as a client that talks to a broker does."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.events = job["events"]
        self.batch = job["batch"]
        self.lanes = job.get("lanes", 1)
        self.raws = make_raws(job)
        self.settled = 0
        self.began = 0.0
        self.done = asyncio.Event()

    async def open_stream(self):
        self.began = time.process_time()
        for start in range(0, self.events, self.batch):
            for number in range(start, min(self.events, start + self.batch)):
                yield self.raws[number], number
            await asyncio.sleep(0)
            while start + self.batch - self.settled > AHEAD:
                await asyncio.sleep(0)
        await asyncio.Event().wait()

    if WORLD == "headrace":

        async def open_batches(self):
            self.began = time.process_time()
            for start in range(0, self.events, self.batch):
                stop = min(self.events, start + self.batch)
                yield list(zip(self.raws[start:stop], range(start, stop), strict=True))
                await asyncio.sleep(0)
                while start + self.batch - self.settled > AHEAD:
                    await asyncio.sleep(0)
            await asyncio.Event().wait()

    def get_advance_lane(self, number):
        return number % self.lanes

    async def advance(self, batch) -> None:
        self.settled += len(batch)
        if self.settled >= self.events:
            self.done.set()


class OneLane(Source):
    """Without lanes there is nothing to ask."""

    get_advance_lane = SharedStreamProducer.get_advance_lane


class Trigger(BaseEventTrigger):
    source: Source

    def __init__(self) -> None:
        """Airflow's own would want more of its world than a manager needs."""

    def serialize(self):
        return "benchmarks.Trigger", {}

    def shared_stream_key(self):
        return "bench"

    async def run(self):
        raise NotImplementedError
        yield

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        return cls.source

    async def filter_shared_stream(self, shared_stream):
        async for raw in shared_stream:
            if not raw % 100:
                yield TriggerEvent(raw)


class IndexedTrigger(Trigger):
    """Wants the events of one number, and says so to who asks."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted

    def shared_stream_match(self):
        return {"for": [self.wanted]}

    async def filter_shared_stream(self, shared_stream):
        async for raw in shared_stream:
            if raw["for"] == self.wanted and not raw["number"] % 100:
                yield TriggerEvent(raw["number"])


def make_raws(job: dict[str, Any]) -> Any:
    if not job.get("indexed"):
        return range(job["events"])
    subscribers = job["subscribers"]
    return [{"for": -1 if job.get("nobody") else number % subscribers, "number": number} for number in range(job["events"])]


async def fan_out(job: dict[str, Any]) -> float:
    """CPU seconds from the first poll, when everybody has subscribed, until everything is settled."""
    manager = SharedStreamManager(log=logging.getLogger("benchmark"))
    source = Source(job) if job.get("lanes", 1) > 1 else OneLane(job)
    Trigger.source = source
    unconfirmed: list[int] = []

    async def subscribe(number: int) -> None:
        trigger = IndexedTrigger(number) if job.get("indexed") else Trigger()
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key="bench")
        async for _ in trigger.filter_shared_stream(stream):
            write_id = manager.bind_pending_event(trigger_id=number, key="bench")
            if write_id is not None:
                unconfirmed.append(write_id)

    async def confirm() -> None:
        while True:
            await asyncio.sleep(0)
            if unconfirmed:
                manager.confirm_persisted(list(unconfirmed))
                unconfirmed.clear()

    tasks = [asyncio.create_task(subscribe(number)) for number in range(job["subscribers"])]
    tasks.append(asyncio.create_task(confirm()))
    gc.collect()
    await source.done.wait()
    taken = time.process_time() - source.began
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await manager.stop_all()
    return taken


async def bare(job: dict[str, Any]) -> float:
    """The same filters over a plain async generator each, in turn."""

    async def stream():
        for raw in raws:
            yield raw

    async def drain() -> None:
        async for _ in Trigger().filter_shared_stream(stream()):
            pass

    raws = make_raws(job)
    gc.collect()
    began = time.process_time()
    for _ in range(job["subscribers"]):
        await drain()
    return time.process_time() - began


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed is no answer
    for line in sys.stdin:
        job = json.loads(line)
        taken = asyncio.run((bare if job.get("bare") else fan_out)(job))
        print(json.dumps(taken), file=answers, flush=True)


if __name__ == "__main__":
    main()
