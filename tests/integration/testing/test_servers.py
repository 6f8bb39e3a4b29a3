"""The real servers, as tests get them: they keep what they stored, and do what tests need of them quickly."""

import asyncio

import asyncpg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.testing.brokers import Kafka, PostgreSQL, ServerFailed
from headrace.testing.pytest_plugin import OwnServer
from headrace.testing.waiting import wait_until

pytestmark = pytest.mark.integration


def publish(kafka: Kafka, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "acks": "all"})
    for key, value in records:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(20.0) == 0


def read(kafka: Kafka, topic: str, group: str = "reader") -> list[tuple[int, bytes | None]]:
    """The offset and value of everything that is in the topic's only partition now."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": group, "enable.partition.eof": True, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(20.0)) is not None and message.error() is None:
            found.append((message.offset(), message.value()))
        assert message is not None, "the broker does not answer"
        return found
    finally:
        consumer.close()


def test_kafka_has_its_data_after_a_kill_and_a_stop(own_server: OwnServer) -> None:
    """The same port and the same records, whichever way it ended."""
    kafka = own_server("kafka")
    assert isinstance(kafka, Kafka)
    address = kafka.address
    kafka.create_topic("orders")
    for number, end in enumerate((kafka.kill, kafka.stop)):
        publish(kafka, "orders", (None, b"%d" % number))
        end()
        assert not kafka.answers()
        kafka.restart()
    assert kafka.address == address
    assert read(kafka, "orders") == [(0, b"0"), (1, b"1")]


def test_kafka_makes_and_removes_topics(kafka: Kafka) -> None:
    """A topic is there when `create_topic` returns and its name is free when `delete_topic` does; none is made by itself."""
    kafka.create_topic("made-by-hand", partitions=3)
    assert len(kafka.partitions("made-by-hand")) == 3
    with pytest.raises(KafkaException):
        kafka.create_topic("made-by-hand")
    kafka.delete_topic("made-by-hand")
    kafka.create_topic("made-by-hand", partitions=2)
    assert len(kafka.partitions("made-by-hand")) == 2
    assert kafka.partitions("never-made") == []


def test_kafka_deletes_and_compacts_within_seconds(kafka: Kafka) -> None:
    """What a topic's config asks for is done while a test waits for it."""
    quick = {"segment.ms": "100", "retention.ms": "100", "file.delete.delay.ms": "0"}
    kafka.create_topic("short-lived", config=quick)
    kafka.create_topic(
        "compacted", config={"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    )
    publish(kafka, "short-lived", (None, b"gone"))
    publish(kafka, "compacted", (b"k", b"old"), (b"k", b"new"), (b"other", b"kept"))

    def is_done() -> bool:
        publish(kafka, "short-lived", (None, b"next"))  # a record of a later time is what closes a segment
        publish(kafka, "compacted", (b"last", b"next"))
        values = [value for _, value in read(kafka, "compacted")]
        return b"gone" not in [value for _, value in read(kafka, "short-lived")] and b"old" not in values and b"new" in values

    wait_until(is_done, seconds=30.0)


def test_kafka_takes_settings(own_server: OwnServer) -> None:
    """A server of one's own may be set up otherwise: here, topics make themselves."""
    kafka = own_server("kafka", {"auto.create.topics.enable": "true"})
    assert isinstance(kafka, Kafka)
    publish(kafka, "by-itself", (None, b"x"))
    assert read(kafka, "by-itself") == [(0, b"x")]


async def query(url: str, statement: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(statement)
    finally:
        await connection.close()


async def test_postgresql_has_its_data_after_a_kill_and_a_stop(own_server: OwnServer) -> None:
    """The same port and the same rows, whichever way it ended."""
    postgresql = await asyncio.to_thread(own_server, "postgresql")
    assert isinstance(postgresql, PostgreSQL)
    url = await asyncio.to_thread(postgresql.create_database)
    await query(url, "CREATE TABLE t AS SELECT 1 AS n")
    for end in (postgresql.kill, postgresql.stop):
        await query(url, "INSERT INTO t SELECT max(n) + 1 FROM t")
        end()
        assert not postgresql.answers()
        await asyncio.to_thread(postgresql.restart)
    assert [row["n"] for row in await query(url, "SELECT n FROM t ORDER BY n")] == [1, 2, 3]


async def test_postgresql_databases_are_apart(postgresql: PostgreSQL) -> None:
    """Each test may have a database of its own."""
    first, second = postgresql.create_database(), postgresql.create_database()
    await query(first, "CREATE TABLE only_here (n int)")
    with pytest.raises(asyncpg.UndefinedTableError):
        await query(second, "SELECT * FROM only_here")
    postgresql.drop_database(first)
    postgresql.drop_database(second)


COUNTED = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


async def deadlock(url: str) -> None:
    """Two transactions that wait for each other, until the server ends one."""
    first, second = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        await first.execute("BEGIN; LOCK a")
        await second.execute("BEGIN; LOCK b")
        await asyncio.gather(first.execute("LOCK b"), second.execute("LOCK a"), return_exceptions=True)
    finally:
        first.terminate()
        second.terminate()


async def test_postgresql_gives_a_database_again_empty(postgresql: PostgreSQL) -> None:
    """What a test left in its database, and who was still connected to it, is gone for the next."""
    url = postgresql.create_database()
    await query(url, "CREATE TABLE a (n int)")
    await query(url, "CREATE TABLE b (n int)")
    await deadlock(url)
    assert [row["deadlocks"] for row in await query(url, COUNTED)] == [1]
    left_open = await asyncpg.connect(url)
    await left_open.execute("CREATE SCHEMA mine; CREATE TABLE mine.a (n int); BEGIN; LOCK b")
    postgresql.drop_database(url)
    assert postgresql.create_database() == url
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
        await left_open.execute("SELECT 1")
    left_open.terminate()
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
    assert await query(url, tables) == []
    await query(url, "CREATE TABLE b (n int)")
    assert [row["deadlocks"] for row in await query(url, COUNTED)] == [0]
    postgresql.drop_database(url)


async def test_postgresql_at_an_address_is_left_as_it_was(postgresql: PostgreSQL) -> None:
    """Databases that we made there are removed at the end."""
    there = PostgreSQL.at_address(postgresql.address, "HEADRACE_POSTGRESQL")
    url = there.create_database()
    there.drop_database(url)
    there.close()
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await query(url, "SELECT 1")
    assert postgresql.answers()


async def test_postgresql_wants_the_password_and_never_shows_it(postgresql: PostgreSQL) -> None:
    """Wrong credentials are refused; the password is in the address alone."""
    with pytest.raises(asyncpg.InvalidPasswordError):
        await query(postgresql.address.replace(":headrace@", ":wrong@"), "SELECT 1")
    assert "headrace@" not in postgresql.public_address
    assert "headrace@" not in repr(postgresql)


async def test_postgresql_takes_settings(own_server: OwnServer) -> None:
    """A server of one's own may be set up otherwise."""
    postgresql = await asyncio.to_thread(own_server, "postgresql", {"max_connections": "17"})
    assert [tuple(row) for row in await query(postgresql.address, "SHOW max_connections")] == [("17",)]


async def test_a_database_url_is_an_empty_database(database_url: str) -> None:
    """The fixture gives the test a database of its own on each kind."""
    if database_url.startswith("postgresql://"):
        assert await query(database_url, "SELECT * FROM information_schema.tables WHERE table_schema = 'public'") == []
    else:
        assert database_url.startswith("sqlite:///")


def test_an_answer_at_an_address_is_enough(kafka: Kafka, postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs elsewhere is used as it is, and says its version where its protocol does."""
    there = PostgreSQL.at_address(postgresql.address, "HEADRACE_POSTGRESQL")
    assert (there.version, there.kind) == (postgresql.version, "address")
    same = Kafka.at_address(kafka.address, "HEADRACE_KAFKA")
    assert same.description == f"Apache Kafka with metadata.version 30 (at {kafka.address})"
    assert same.partitions("never-made") == []
    with pytest.raises(ServerFailed, match="not ours"):
        same.stop()
