"""aiokafka's clients as this connector needs them, and what their errors mean to a user.

The one module that looks behind aiokafka's public names, for what they do not tell: the membership (member id and
generation), a partition's position without waiting for one, topics that may not be used, and why a broker could not be reached.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.consumer.fetcher import FetchError
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import RecordMetadata

from headrace import HeadraceError, Message, SourceMisconfigured, SourceUnavailable
from headrace_kafka.config import KafkaConfig
from headrace_kafka.errors import explain
from headrace_kafka.quiet import quieten
from headrace_kafka.security import security_options

Header = tuple[str, bytes | None]

_ASSIGNORS: Final = {"roundrobin": RoundRobinPartitionAssignor, "range": RangePartitionAssignor}

MAX_REQUEST_SIZE: Final = 2**30
"""What may be sent is the broker's to say: a dead letter is a little larger than the message it was."""
CREATION_WAITS: Final = (0.0, 0.1, 0.2, 0.4, 0.8)
"""Seconds between looks at a topic that may be being made."""


class Membership(NamedTuple):
    """Who this consumer is to the group's coordinator. Without a generation it is nobody."""

    member_id: str
    generation: int

    @property
    def is_valid(self) -> bool:
        return self.generation > 0

    def follows(self, earlier: Membership) -> bool:
        """Whether no generation was missed in between."""
        same = self.is_valid and earlier.is_valid and self.member_id == earlier.member_id
        return same and self.generation - earlier.generation in (0, 1)  # a static member may be told the same generation again


NOBODY: Final = Membership("", -1)


class GroupConsumer(AIOKafkaConsumer):  # type: ignore[misc]
    """A consumer in a group that commits and resets nothing by itself."""

    @property
    def membership(self) -> Membership:
        coordinator = self._coordinator
        return Membership(coordinator.member_id, coordinator.generation) if coordinator is not None else NOBODY

    def position_of(self, key: TopicPartition) -> int | None:
        """The next offset that will be fetched; None where none is known yet, or the partition is not assigned.

        None too while an error of the partition waits to be raised: of a message that is too large aiokafka moves on first.
        """
        if isinstance(self._fetcher._records.get(key), FetchError):
            return None
        subscription = self._subscription.subscription
        assignment = subscription.assignment if subscription is not None else None
        state = assignment.state_value(key) if assignment is not None else None
        return state.position if state is not None and state.has_valid_position else None


async def require_topics(client: AIOKafkaConsumer | AIOKafkaProducer, config: KafkaConfig, **topics: Collection[str]) -> None:
    """Ask a started client for topics, by the option that names them. Raises `SourceUnavailable` for those that the cluster
    does not have, and does not make when asked; `SourceMisconfigured` for those that may not be used."""
    connections = client._client if isinstance(client, AIOKafkaConsumer) else client.client
    try:
        known = (await connections.fetch_all_metadata()).topics()
        for option, names in topics.items():
            if missing := await _ask_for(connections, set(names) - known):
                raise SourceUnavailable(f"{option}: there is no topic {', '.join(missing)} at {config.servers}; create it")
    except KafkaError as error:
        raise explain(error, config) from error


async def _ask_for(connections: AIOKafkaClient, topics: set[str]) -> list[str]:
    """Ask for topics by name, which makes them where the brokers are set up so; returns those that are still missing."""
    cluster = connections.cluster
    for wait in CREATION_WAITS:
        if not topics or all(cluster.partitions_for_topic(topic) for topic in topics):
            return []
        await asyncio.sleep(wait)
        await connections.set_topics(topics)
        await connections.force_metadata_update()
        if forbidden := topics & cluster.unauthorized_topics:
            raise errors.TopicAuthorizationFailedError(", ".join(sorted(forbidden)))
    return sorted(topic for topic in topics if not cluster.partitions_for_topic(topic))


def build_consumer(config: KafkaConfig) -> GroupConsumer:
    """Build the consumer of a stream, not yet started. Raises `SourceMisconfigured`."""
    return GroupConsumer(
        **connection_options(config),
        group_id=config.group_id,
        group_instance_id=config.member_name,
        auto_offset_reset="none",  # where to start is decided, and reported, by the session
        enable_auto_commit=False,
        isolation_level=config.isolation_level,
        session_timeout_ms=_ms(config.session_timeout),
        heartbeat_interval_ms=_ms(config.heartbeat_interval),
        max_poll_interval_ms=_ms(config.max_poll_interval),
        max_poll_records=config.max_poll_records,
        fetch_min_bytes=config.fetch_min_bytes,
        fetch_max_bytes=config.fetch_max_bytes,
        fetch_max_wait_ms=_ms(config.fetch_max_wait),
        max_partition_fetch_bytes=config.max_partition_fetch_bytes,
        check_crcs=config.check_crcs,
        client_rack=config.client_rack,
        partition_assignment_strategy=(_ASSIGNORS[config.partition_assignment_strategy],),
    )


async def start_producer(config: KafkaConfig) -> AIOKafkaProducer:
    """Build and start a producer that loses and doubles nothing. Raises `SourceUnavailable` or `SourceMisconfigured`."""
    producer = AIOKafkaProducer(
        **connection_options(config), acks="all", enable_idempotence=True, max_request_size=MAX_REQUEST_SIZE, linger_ms=5
    )
    await start(producer, config)
    return producer


async def send(
    producer: AIOKafkaProducer, topic: str, message: Message, headers: Sequence[Header]
) -> asyncio.Future[RecordMetadata]:
    """Hand a message's value and key to a started producer; the future says that the broker has it. Raises aiokafka's errors."""
    if message.value is not None or message.key is not None:
        return await producer.send(topic, message.value, key=message.key, headers=headers)  # type: ignore[no-any-return]
    batch = producer.create_batch()  # `AIOKafkaProducer.send` refuses a record of two nulls, which Kafka allows
    batch.append(key=None, value=None, timestamp=None, headers=headers)
    batch.close()
    partition = random.choice(sorted(await producer.partitions_for(topic)))
    return await producer.send_batch(batch, topic, partition=partition)  # type: ignore[no-any-return]


async def start(client: AIOKafkaConsumer | AIOKafkaProducer, config: KafkaConfig) -> None:
    """Connect a client. Raises `SourceUnavailable` or `SourceMisconfigured`, and leaves nothing open."""
    try:
        await client.start()
    except BaseException as error:
        await stop(client)
        if isinstance(error, errors.KafkaConnectionError):
            raise await why_unreachable(config) from error
        if isinstance(error, KafkaError):
            raise explain(error, config) from error
        raise


async def stop(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """Disconnect a client, started or not. When it is cancelled the client is ended all the same.

    aiokafka's own `stop` passes on what its tasks ended with, be it an error or the cancellation they got from it, and then
    leaves the others running and its connections open.
    """
    stopping = asyncio.ensure_future(client.stop())
    try:
        await asyncio.wait({stopping})
    finally:
        if not stopping.done() or stopping.cancelled() or stopping.exception() is not None:
            for task in [stopping, *_tasks_of(client)]:
                task.cancel()
            connections = client._client if isinstance(client, AIOKafkaConsumer) else client.client
            await connections.close()


def _tasks_of(client: AIOKafkaConsumer | AIOKafkaProducer) -> Iterable[asyncio.Future[Any]]:
    """The tasks that a client may have."""
    found: list[asyncio.Future[Any] | None] = []
    if isinstance(client, AIOKafkaProducer):
        found = [client._sender.sender_task]
    elif (coordinator := client._coordinator) is not None:
        found = [coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task]
        found += [client._fetcher._fetch_task, *client._fetcher._pending_tasks]
    return (task for task in found if task is not None)


def connection_options(config: KafkaConfig) -> dict[str, Any]:
    """What every client of this config has in common. Raises `SourceMisconfigured` for what cannot be loaded."""
    quieten()
    return {
        "bootstrap_servers": list(config.bootstrap_servers),
        "client_id": config.client_id,
        "request_timeout_ms": _ms(config.request_timeout),
        "retry_backoff_ms": _ms(config.retry_backoff),
        "metadata_max_age_ms": _ms(config.metadata_max_age),
        "connections_max_idle_ms": _ms(config.connections_max_idle),
        **security_options(config),
    }


async def why_unreachable(config: KafkaConfig) -> HeadraceError:
    """Connect to the brokers once more, to say what aiokafka only logs."""
    reasons = []
    for address in config.bootstrap_servers:
        host, _, port = address.rpartition(":")
        options = connection_options(config)
        for unused in ("bootstrap_servers", "retry_backoff_ms", "metadata_max_age_ms", "connections_max_idle_ms"):
            del options[unused]
        try:
            connection = await create_conn(host.strip("[]"), int(port), **options)
        except (OSError, KafkaError) as error:
            said = explain(error, config)
            if isinstance(said, SourceMisconfigured):
                return said
            reasons.append(f"{address}: {error or type(error).__name__}")
        else:
            connection.close()
            reasons.append(f"{address}: connected, but there was no answer")
    return SourceUnavailable(f"no broker of bootstrap_servers can be reached ({'; '.join(reasons)})")


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
