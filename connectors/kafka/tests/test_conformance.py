"""The Kafka connector keeps the contract of a producer: on Apache Kafka, and over an outage on librdkafka's mock cluster."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from headrace_kafka import CONNECTOR, KafkaConfig

from headrace import Message, SharedStreamProducer
from headrace.testing.brokers import Kafka
from headrace.testing.brokers.mock_kafka import MockKafka
from headrace.testing.conformance import DeadLetter, Harness, ProducerConformance

pytestmark = pytest.mark.integration

PARTITIONS = 4
numbers = itertools.count()


class KafkaHarness(Harness):
    quiet = 0.4

    def __init__(self, server: Kafka | MockKafka) -> None:
        name = f"c{os.getpid()}-{next(numbers)}"
        server.create_topic(name, PARTITIONS)
        server.create_topic(f"{name}.dead", 1)
        self.address = server.address
        self.config = KafkaConfig(
            bootstrap_servers=server.address,
            topics=name,
            group_id=name,
            dead_letter_topic=f"{name}.dead",
            session_timeout=2.0,
            heartbeat_interval=0.3,
            redelivery_backoff=0.5,  # the third rest is longer than publishing takes
            request_timeout=2.0,
            fetch_max_wait=0.1,
        )
        self._crashed: list[Any] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        await CONNECTOR.publish(self.config, messages)

    def create_producer(self) -> SharedStreamProducer:
        return CONNECTOR.create_producer(self.config)

    async def remaining(self) -> Sequence[bytes | None]:
        keys = [TopicPartition(self.config.topics[0], partition) for partition in range(PARTITIONS)]
        admin = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await admin.start()
        try:
            committed = await admin.list_consumer_group_offsets(self.config.group_id, partitions=keys)
        finally:
            await admin.close()
        return [record.value for record in await self._read({key: max(0, committed[key].offset) for key in keys})]

    async def dead_letters(self) -> Sequence[DeadLetter]:
        letters = []
        for record in await self._read({TopicPartition(f"{self.config.topics[0]}.dead", 0): 0}):
            message = Message(
                value=record.value, key=record.key, headers=record.headers, id="", source=record.topic, timestamp=0.0
            )
            letters.append(DeadLetter(message, (dict(record.headers)["headrace-reason"] or b"").decode()))
        return letters

    async def _read(self, starts: dict[TopicPartition, int]) -> list[Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.address, auto_offset_reset="earliest")
        await consumer.start()
        try:
            consumer.assign(list(starts))
            ends = await consumer.end_offsets(list(starts))
            records = []
            for key, start in starts.items():
                consumer.seek(key, start)
                while await consumer.position(key) < ends[key]:
                    records += (await consumer.getmany(key, timeout_ms=100)).get(key, [])
            return records
        finally:
            await consumer.stop()

    async def crash(self, producer: Any) -> bool:
        """No task of the consumer runs any more and its connections are gone; its session times out."""
        consumer = producer._session._consumer
        for task in [*producer._tasks, consumer._coordinator._heartbeat_task, consumer._coordinator._coordination_task]:
            task.cancel()
        await consumer._client.close()
        self._crashed.append(producer)
        return True

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for producer in self._crashed:
            await producer.aclose()


class TestApacheKafka(ProducerConformance):
    @pytest.fixture
    def harness(self, kafka: Kafka) -> Harness:
        return KafkaHarness(kafka)


class OutageHarness(KafkaHarness):
    def __init__(self, server: MockKafka) -> None:
        super().__init__(server)
        self.config = self.config.model_copy(update={"session_timeout": 20.0})  # the outage is shorter than the membership
        self._server = server

    def outage(self) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def away() -> AsyncIterator[None]:
            self._server.take_down()
            yield
            self._server.bring_up()

        return away()


class TestOutage:
    """What the suite asks of an outage, on a cluster that can be taken down in no time."""

    test_an_outage_raises_source_unavailable = ProducerConformance.test_an_outage_raises_source_unavailable

    @pytest.fixture
    def harness(self, mock_kafka: MockKafka) -> Harness:
        return OutageHarness(mock_kafka)
