"""A broker in a file of the test's own, and a harness for the conformance suite."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest
from headrace_local import LocalConfig, LocalConnector, QueueFile

from headrace import Message, SharedStreamProducer
from headrace.testing.conformance import DeadLetter, Harness

T = TypeVar("T")
MakeConfig = Callable[..., LocalConfig]


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """Build a config on a file of this test, with waits as short as tests want them."""

    def make(**options: Any) -> LocalConfig:
        given: dict[str, Any] = {
            "path": str(tmp_path / "queue.db"), "backoff": 0.1, "max_backoff": 2.0, "poll_interval": 0.02, **options,
        }  # fmt: skip
        return LocalConfig(**given)

    return make


class LocalHarness(Harness):
    quiet = 0.4
    shares_lanes = True

    def __init__(self, config: LocalConfig) -> None:
        self.config = config
        self.connector = LocalConnector()
        self._crashed: list[SharedStreamProducer] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        await self.connector.publish(self.config, messages)

    def create_producer(self) -> SharedStreamProducer:
        return self.connector.create_producer(self.config)

    async def remaining(self) -> Sequence[bytes | None]:
        return [message.value for message in await self.look(QueueFile.waiting)]

    async def dead_letters(self) -> Sequence[DeadLetter]:
        return [DeadLetter(letter.message, letter.reason) for letter in await self.look(QueueFile.dead_letters)]

    async def consumers(self) -> int:
        return int((await self.look(QueueFile.stats))["consumers"])

    async def crash(self, producer: SharedStreamProducer) -> bool:
        """As seen by the broker: the lease has run out. (A process that is really killed: test_processes.)"""
        self._crashed.append(producer)
        with closing(sqlite3.connect(self.config.path)) as database, database:
            database.execute("UPDATE consumer SET until = 0")
        return True

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for producer in self._crashed:
            await producer.aclose()

    def outage(self) -> AbstractAsyncContextManager[None] | None:
        @asynccontextmanager
        async def away() -> AsyncIterator[None]:
            with closing(sqlite3.connect(self.config.path, isolation_level=None)) as lock:
                lock.execute("BEGIN EXCLUSIVE")
                yield

        return away()

    async def look(self, question: Callable[[QueueFile, str], T]) -> T:
        """Ask the broker as another process would: by a connection of its own."""
        with closing(QueueFile(self.config.path)) as file:
            return question(file, self.config.queue)
