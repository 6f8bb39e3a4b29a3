"""Where the demo's orders go: the embedded broker, or a Kafka that is there."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SourceUnavailable

PARTITIONS = 4


@asynccontextmanager
async def local_queue(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """A queue in a file of its own; yields the stream's config."""
    stream = {"connector": "local", "path": str(folder / "orders.db"), "queue": "orders"}
    yield stream | {"visibility_timeout": 2.0}  # so soon is what the killed one had handed out again


@asynccontextmanager
async def kafka_topic(bootstrap_servers: str) -> AsyncIterator[dict[str, Any]]:
    """A topic of its own, which is deleted at the end; yields the stream's config."""
    try:
        admin = importlib.import_module("aiokafka.admin")
        errors = importlib.import_module("aiokafka.errors")
    except ImportError as error:
        raise HeadraceError("the Kafka connector is not installed: pip install headrace-kafka") from error
    name = f"headrace-demo-{uuid.uuid4().hex[:8]}"
    client = admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await client.start()
    except errors.KafkaError as error:
        await client.close()
        raise SourceUnavailable(f"Kafka does not answer at {bootstrap_servers}: {error}") from error
    try:
        await client.create_topics([admin.NewTopic(name, num_partitions=PARTITIONS, replication_factor=1)])
        stream = {"connector": "kafka", "bootstrap_servers": bootstrap_servers, "topics": [name], "group_id": name}
        yield stream | {"session_timeout": 6.0, "heartbeat_interval": 2.0}  # so soon is the killed one's place given away
        await client.delete_topics([name])
    finally:
        await client.close()
