"""A producer driven without an engine, and a cluster to drive it on."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from headrace_kafka import KafkaConfig, KafkaProducer
from headrace_kafka.message import KafkaMessage

from headrace import AdvanceItem, AdvanceOutcome, LaneLost
from headrace.testing.brokers import Kafka
from headrace.testing.waiting import eventually

_numbers = itertools.count()


class Driven:
    """A producer whose batches are pulled by a task, as an engine would: what came, and what of it was lost."""

    def __init__(self, producer: KafkaProducer) -> None:
        self.producer = producer
        self.messages: list[KafkaMessage] = []
        """All that were handed out, in order."""
        self.lost: list[Any] = []
        self.is_pulling = asyncio.Event()
        self.is_pulling.set()
        self._pull = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for found in self.producer.open_batches():
            if isinstance(found, LaneLost):
                self.lost.append(found.lane)
            else:
                self.messages += [raw for raw, _ in found]
            await self.is_pulling.wait()

    async def next(self, count: int, seconds: float = 20.0) -> list[KafkaMessage]:
        """The next so many messages, which may have come before; they are taken off `messages`."""
        await eventually(lambda: len(self.messages) >= count or self._pull.done(), seconds)
        if self._pull.done():
            self._pull.result()
        taken, self.messages = self.messages[:count], self.messages[count:]
        return taken

    def drop_stale(self) -> None:
        """As an engine would after a lost lane or a failure: forget what came of ended runs."""
        self.messages = [message for message in self.messages if message.run.is_current]

    async def failure(self, seconds: float = 20.0) -> BaseException:
        """What the poll ends with."""
        await asyncio.wait({self._pull}, timeout=seconds)
        assert self._pull.done(), "the poll goes on"
        error = self._pull.exception()
        assert error is not None
        return error

    async def advance(self, messages: Iterable[KafkaMessage], others: Mapping[int, AdvanceOutcome] | None = None) -> None:
        """Say that the messages are acked, but for those whose offset is in `others`: lane by lane, all lanes at once."""
        acked = AdvanceOutcome(acked=1, failed=0)
        lanes: dict[Any, list[AdvanceItem]] = {}
        for message in messages:
            item = AdvanceItem(message, (others or {}).get(message.offset, acked))
            lanes.setdefault(self.producer.get_advance_lane(message), []).append(item)
        await asyncio.gather(*(self.producer.advance(items) for items in lanes.values()))

    async def close(self) -> None:
        self._pull.cancel()
        await asyncio.wait({self._pull})
        await self.producer.aclose()


class Cluster:
    """A broker with topics and groups of the test's own."""

    def __init__(self, server: Any, stack: AsyncExitStack) -> None:
        self.server = server
        self.address: str = server.address
        self._stack = stack
        self._producer: AIOKafkaProducer | None = None

    def topic(self, partitions: int = 1, **config: str) -> str:
        """A new topic; `retention_ms="1000"` is Kafka's `retention.ms`."""
        name = f"t{os.getpid()}-{next(_numbers)}"
        if isinstance(self.server, Kafka):
            return self.server.create_topic(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return self.server.create_topic(name, partitions)  # type: ignore[no-any-return]

    async def add_partitions(self, topic: str, total: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            await admin.create_partitions({topic: NewPartitions(total_count=total)})
            self._producer = None  # it knows the old number
        finally:
            await admin.close()

    def config(self, *topics: str, **options: Any) -> KafkaConfig:
        """A config with a group of its own, and waits that are short."""
        defaults = {
            "bootstrap_servers": self.address,
            "topics": topics,
            "group_id": f"g{os.getpid()}-{next(_numbers)}",
            "session_timeout": 6.0,
            "heartbeat_interval": 0.2,
            "fetch_max_wait": 0.1,
            "request_timeout": 10.0,
            "redelivery_backoff": 0.05,
            "rebalance_grace": 0.3,
        }
        return KafkaConfig(**defaults | options)

    def open(self, config: KafkaConfig) -> Driven:
        """Drive a producer until the test ends."""
        driven = Driven(KafkaProducer(config))
        self._stack.push_async_callback(driven.close)
        return driven

    async def publish(self, topic: str, values: Iterable[bytes | None], **options: Any) -> list[int]:
        """Publish in order; returns the offsets. `options` are those of aiokafka's `send`."""
        if self._producer is None:
            self._producer = AIOKafkaProducer(bootstrap_servers=self.address)
            await self._producer.start()
            self._stack.push_async_callback(self._producer.stop)
        sent = [await self._producer.send(topic, value, **options) for value in values]
        return [(await future).offset for future in sent]

    async def publish_compressed(self, topic: str, value: bytes, compression: str) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.address, compression_type=compression)
        await producer.start()
        try:
            await producer.send_and_wait(topic, value)
        finally:
            await producer.stop()

    async def publish_raw(self, topic: str, **record: Any) -> None:
        """Publish a record that aiokafka's `send` refuses (key and value null)."""
        producer = AIOKafkaProducer(bootstrap_servers=self.address)
        await producer.start()
        try:
            batch = producer.create_batch()
            batch.append(timestamp=None, **record)
            batch.close()
            await (await producer.send_batch(batch, topic, partition=0))
        finally:
            await producer.stop()

    async def publish_transaction(self, topic: str, values: Iterable[bytes], *, commit: bool) -> None:
        """Publish in a transaction, which is then committed or aborted."""
        name = f"x{os.getpid()}-{next(_numbers)}"
        producer = AIOKafkaProducer(bootstrap_servers=self.address, transactional_id=name)
        await producer.start()
        try:
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    async def committed(self, config: KafkaConfig, partition: int = 0, topic: str | None = None) -> int | None:
        """The group's offset, as the broker has it."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            key = TopicPartition(topic or config.topics[0], partition)
            found = (await admin.list_consumer_group_offsets(config.group_id, partitions=[key]))[key].offset
            return None if found < 0 else found
        finally:
            await admin.close()

    async def set_offset(self, config: KafkaConfig, offset: int, partition: int = 0) -> None:
        """Set the group's offset by hand, while it has no members."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.address, group_id=config.group_id, enable_auto_commit=False)
        await consumer.start()
        try:
            key = TopicPartition(config.topics[0], partition)
            consumer.assign([key])
            await consumer.commit({key: offset})
        finally:
            await consumer.stop()

    async def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        """As retention would: the partition then starts at this offset."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            await admin.delete_records({TopicPartition(topic, partition): RecordsToDelete(before_offset=before)})
        finally:
            await admin.close()

    async def read(self, topic: str, count: int) -> Sequence[Any]:
        """The first records of a topic, whichever partition they are in."""
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=self.address, auto_offset_reset="earliest")
        await consumer.start()
        try:
            async with asyncio.timeout(20):
                return [await consumer.getone() for _ in range(count)]
        finally:
            await consumer.stop()


@asynccontextmanager
async def _cluster(server: Any) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(server, stack)


@pytest.fixture
async def cluster(kafka: Kafka) -> AsyncIterator[Cluster]:
    """The real Apache Kafka."""
    async with _cluster(kafka) as cluster:
        yield cluster


@pytest.fixture
async def mock(mock_kafka: Any) -> AsyncIterator[Cluster]:
    """A Kafka that fails as it is told, with `mock.server.fail_next` and others."""
    async with _cluster(mock_kafka) as cluster:
        yield cluster


@pytest.fixture
async def own_cluster(own_server: Callable[..., Any]) -> AsyncIterator[Callable[..., Cluster]]:
    """Launch a real Apache Kafka of the test's own, to stop and start, with settings perhaps."""
    async with AsyncExitStack() as stack:
        yield lambda settings=None: Cluster(own_server("kafka", settings), stack)
