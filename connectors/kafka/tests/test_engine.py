"""The connector under the engine: what two triggers on one stream see of Kafka's order and commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from typing import Any, ClassVar

import pytest
from headrace_kafka import KafkaConfig, KafkaProducer
from headrace_kafka.message import KafkaMessage

from headrace import BaseEventTrigger, SharedStreamManager, SharedStreamProducer
from headrace.runner.hosting import HostedProducer
from headrace.testing.waiting import eventually

from .conftest import Cluster

pytestmark = pytest.mark.integration


class OnKafka(BaseEventTrigger):
    """A trigger on the stream of `config`."""

    config: ClassVar[KafkaConfig]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {}

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return HostedProducer(lambda: KafkaProducer(cls.config), name="kafka")


class Watch:
    """A manager with subscribers that store one row for each message, once for each (subscriber, message id)."""

    def __init__(self, config: KafkaConfig) -> None:
        self.manager = SharedStreamManager(max_parallel_advances=64)
        self.trigger = type("Trigger", (OnKafka,), {"config": config})()
        self.seen: dict[Hashable, list[int]] = {}
        self.rows: dict[tuple[Hashable, str], int] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, handle: Any = None) -> None:
        """Subscribe; `handle(message)` says whether the message is stored, refused (False), or raises."""
        self.seen[name] = []
        events = self.manager.subscribe(trigger_id=name, trigger=self.trigger, key="stream")
        self.tasks.append(asyncio.create_task(self._consume(name, events, handle)))

    async def _consume(self, name: str, events: AsyncIterator[KafkaMessage], handle: Any) -> None:
        async for message in events:
            self.seen[name].append(message.offset)
            write = self.manager.bind_pending_event(trigger_id=name, key="stream")
            assert write is not None
            if handle is None or await handle(message):
                self.rows.setdefault((name, message.id), message.offset)
                self.manager.confirm_persisted([write])
            else:
                self.manager.persist_failed([write])

    def stored(self, name: str) -> list[int]:
        """The offsets a subscriber stored, in the order of storing."""
        return [offset for (who, _), offset in self.rows.items() if who == name]

    async def stop(self) -> None:
        await self.manager.stop_all()
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


async def test_k8_a_failure_of_one_trigger_is_redelivered_in_order(cluster: Cluster) -> None:
    """K8: 5 fails for B while 6 and 7 are in a later batch: committed stays 5; B gets nothing behind 5 before 5 again; then 8 is
    committed. B stored 5, 6, 7 in this order, and each row exists once."""
    config = cluster.config(cluster.topic())
    watch = Watch(config)
    five = asyncio.Event()

    async def refuse_five_once(message: KafkaMessage) -> bool:
        if message.offset == 5 and not five.is_set():
            await five.wait()
            return False
        return True

    watch.add("A")
    watch.add("B", refuse_five_once)
    await cluster.publish(config.topics[0], [b"x"] * 6)
    await eventually(lambda: watch.seen["B"][-1:] == [5] and watch.stored("A") == list(range(6)))
    await cluster.publish(config.topics[0], [b"x"] * 2)
    await eventually(lambda: watch.stored("A") == list(range(8)))
    assert await cluster.committed(config) == 5
    five.set()

    async def is_committed() -> bool:
        return await cluster.committed(config) == 8

    await eventually(is_committed)
    await watch.stop()
    assert watch.seen["B"] == [0, 1, 2, 3, 4, 5, 5, 6, 7]
    assert watch.stored("B") == list(range(8))
    assert len(watch.rows) == 16


async def test_k6_one_pending_message_holds_the_commit(cluster: Cluster) -> None:
    """K6: offsets 0-99, 1 pending, the rest resolved: committed stays 1; then it jumps to 100."""
    config = cluster.config(cluster.topic())
    watch = Watch(config)
    one = asyncio.Event()

    async def hold_one(message: KafkaMessage) -> bool:
        if message.offset == 1:
            await one.wait()
        return True

    watch.add("slow", hold_one)
    watch.add("quick")
    await cluster.publish(config.topics[0], [b"x"] * 100)
    await eventually(lambda: watch.stored("quick") == list(range(100)))

    async def committed_is(offset: int) -> bool:
        return await cluster.committed(config) == offset

    await eventually(lambda: committed_is(1))
    one.set()
    await eventually(lambda: committed_is(100))
    await watch.stop()


async def test_two_replicas_share_the_work_and_one_takes_over(cluster: Cluster) -> None:
    """Two engines in one group: each message is stored; when one leaves, the other goes on behind what was committed."""
    config = cluster.config(cluster.topic(4))
    for partition in range(4):
        await cluster.publish(config.topics[0], [b"x"] * 50, partition=partition)
    one, two = Watch(config), Watch(config)
    one.add("A")
    await eventually(lambda: len(one.rows) == 200)
    two.add("A")
    for partition in range(4):
        await cluster.publish(config.topics[0], [b"y"] * 50, partition=partition)
    await eventually(lambda: len(one.rows.keys() | two.rows.keys()) == 400)
    await one.stop()
    for partition in range(4):
        await cluster.publish(config.topics[0], [b"z"] * 50, partition=partition)
    await eventually(lambda: len(one.rows.keys() | two.rows.keys()) == 600)
    await two.stop()
    assert [await cluster.committed(config, partition) for partition in range(4)] == [150] * 4
