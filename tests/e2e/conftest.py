"""A rig for each test, on real servers or on the embedded ones."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.testing.brokers import Kafka, PostgreSQL

from .harness import Broker, KafkaTopic, LocalQueue, Rig, rig_on


@pytest.fixture
def seed() -> int:
    """Of all that is random in a test; shown when it fails."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def topic(kafka: Kafka) -> KafkaTopic:
    return KafkaTopic(kafka, f"e2e-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def database(postgresql: PostgreSQL) -> Iterator[str]:
    url = postgresql.create_database()
    yield url
    postgresql.drop_database(url)


@pytest.fixture(params=["kafka", "local"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Broker, str]:
    """A broker and the URL of a database: Kafka with PostgreSQL, or the embedded broker with SQLite."""
    if request.param == "kafka":
        return request.getfixturevalue("topic"), request.getfixturevalue("database")
    return LocalQueue(tmp_path), f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def rig(servers: tuple[Broker, str], tmp_path: Path, seed: int) -> AsyncIterator[Rig]:
    broker, database_url = servers
    async with rig_on(tmp_path, broker, database_url, seed) as rig:
        yield rig
