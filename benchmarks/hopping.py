"""Airflow's way with Kafka: its shared-stream manager over a source that polls one message a thread hop, without a database.

`python hopping.py airflow SITE_PACKAGES`, in Airflow's environment, which has no Kafka client: confluent-kafka, which Airflow's
provider uses, is taken from SITE_PACKAGES. As that provider does, each poll is handed to a thread by `sync_to_async` and brings
one message. Commits are not waited for, and what is derived is confirmed at the loop's next turn: there is no database.

A job: `address`, `topic`, `events`, `subscribers`. The answer: wall and CPU seconds from the first message to the last settled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import uuid
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager, SharedStreamProducer
from asgiref.sync import sync_to_async

sys.path.append(sys.argv[2])
from confluent_kafka import Consumer, TopicPartition


class Source(SharedStreamProducer):
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.settled = 0
        self.began: tuple[float, float] | None = None
        self.done = asyncio.Event()

    async def open_stream(self):
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.job["address"],
                "group.id": f"hopping-{uuid.uuid4().hex}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self.consumer.subscribe([self.job["topic"]])
        poll = sync_to_async(self.consumer.poll)
        while True:
            message = await poll(1.0)
            if message is None:
                continue
            if message.error():
                raise RuntimeError(str(message.error()))
            if self.began is None:
                self.began = time.perf_counter(), time.process_time()
            yield message, (message.topic(), message.partition(), message.offset())

    def get_advance_lane(self, payload):
        return payload[:2]

    async def advance(self, batch) -> None:
        topic, partition, offset = batch[-1].broker_payload
        self.consumer.commit(offsets=[TopicPartition(topic, partition, offset + 1)], asynchronous=True)
        self.settled += len(batch)
        if self.settled >= self.job["events"]:
            self.done.set()

    async def aclose(self) -> None:
        await sync_to_async(self.consumer.close)()


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
        async for message in shared_stream:
            if message.key().endswith(b"00"):
                yield TriggerEvent({"key": message.key().decode()})


async def play(job: dict[str, Any]) -> list[float]:
    manager = SharedStreamManager(log=logging.getLogger("benchmark"))
    Trigger.source = source = Source(job)

    async def subscribe(number: int) -> None:
        trigger = Trigger()
        stream = manager.subscribe(trigger_id=number, trigger=trigger, key="bench")
        async for _ in trigger.filter_shared_stream(stream):
            if (write_id := manager.bind_pending_event(trigger_id=number, key="bench")) is not None:
                loop.call_soon(manager.confirm_persisted, [write_id])

    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(subscribe(number)) for number in range(job["subscribers"])]
    await source.done.wait()
    assert source.began is not None
    wall, cpu = source.began
    taken = [time.perf_counter() - wall, time.process_time() - cpu]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await manager.stop_all()
    return taken


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed is no answer
    for line in sys.stdin:
        print(json.dumps(asyncio.run(play(json.loads(line)))), file=answers, flush=True)


if __name__ == "__main__":
    main()
