"""The mock cluster, driven by aiokafka."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError

from headrace.testing.brokers.mock_kafka import Api, Fault, MockKafka

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
async def consumer(mock_kafka: MockKafka) -> AsyncIterator[AIOKafkaConsumer]:
    """A member of a group that has read the three orders on the cluster."""
    mock_kafka.create_topic("orders")
    async with AIOKafkaProducer(bootstrap_servers=mock_kafka.address) as producer:
        for number in range(3):
            await producer.send_and_wait("orders", b"%d" % number)
    async with AIOKafkaConsumer(
        "orders",
        bootstrap_servers=mock_kafka.address,
        group_id="group",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        retry_backoff_ms=10,
    ) as consumer:
        assert [(await consumer.getone()).value for _ in range(3)] == [b"0", b"1", b"2"]
        yield consumer


async def test_a_message_and_a_commit_go_through(consumer: AIOKafkaConsumer) -> None:
    """Without faults the cluster keeps messages and committed offsets."""
    await consumer.commit({ORDERS: 2})
    assert await consumer.committed(ORDERS) == 2


async def test_only_the_next_requests_fail(mock_kafka: MockKafka, consumer: AIOKafkaConsumer) -> None:
    """Each fault costs one request of its kind; the request after them succeeds."""
    mock_kafka.fail_next(Api.OFFSET_COMMIT, Fault.GROUP_AUTHORIZATION_FAILED, Fault.NONE, Fault.GROUP_AUTHORIZATION_FAILED)
    before = mock_kafka.count_requests(Api.OFFSET_COMMIT)
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer.commit({ORDERS: 1})
    await consumer.commit({ORDERS: 2})
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer.commit({ORDERS: 3})
    assert await consumer.committed(ORDERS) == 2
    assert mock_kafka.count_requests(Api.OFFSET_COMMIT) - before == 3


async def test_faults_can_be_taken_back(mock_kafka: MockKafka, consumer: AIOKafkaConsumer) -> None:
    """A cleared fault does not happen."""
    mock_kafka.fail_next(Api.OFFSET_COMMIT, Fault.GROUP_AUTHORIZATION_FAILED)
    mock_kafka.clear_faults(Api.OFFSET_COMMIT)
    await consumer.commit({ORDERS: 1})
    assert await consumer.committed(ORDERS) == 1


async def test_a_broker_that_is_down_comes_up_with_its_data(mock_kafka: MockKafka, consumer: AIOKafkaConsumer) -> None:
    """Down, it refuses connections; up again, committed offsets are there."""
    await consumer.commit({ORDERS: 3})
    mock_kafka.take_down()
    host, _, port = mock_kafka.address.partition(":")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
    mock_kafka.bring_up()
    assert await consumer.committed(ORDERS) == 3


async def test_answers_can_be_delayed(mock_kafka: MockKafka, consumer: AIOKafkaConsumer) -> None:
    """An answer takes at least the delay."""
    loop = asyncio.get_running_loop()
    mock_kafka.delay(0.3)
    started = loop.time()
    await consumer.commit({ORDERS: 1})
    assert loop.time() - started >= 0.3
    mock_kafka.delay(0)


def test_what_the_cluster_refuses_is_an_error(mock_kafka: MockKafka) -> None:
    """A topic that is there already, and a broker that is not, are reported."""
    mock_kafka.create_topic("orders")
    with pytest.raises(ValueError, match="topic_create"):
        mock_kafka.create_topic("orders")
    with pytest.raises(ValueError, match="set_down"):
        mock_kafka.take_down(broker=7)
