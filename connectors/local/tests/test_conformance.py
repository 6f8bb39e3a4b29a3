"""The local connector keeps the contract of a producer, on a file and in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

import pytest
from headrace_local import QueueFile
from headrace_local.config import IN_MEMORY
from headrace_local.handle import Handle

from headrace import SharedStreamProducer
from headrace.testing.conformance import Harness, ProducerConformance

from .conftest import LocalHarness, MakeConfig

T = TypeVar("T")
queues = itertools.count()


class InMemoryHarness(LocalHarness):
    async def crash(self, producer: SharedStreamProducer) -> bool:
        return False  # the queue would die with it

    def outage(self) -> None:
        return None  # there is nothing that could be away

    async def look(self, question: Callable[[QueueFile, str], T]) -> T:
        handle = Handle.get(IN_MEMORY)
        try:
            return await handle.run(question, self.config.queue)
        finally:
            await handle.aclose()


class TestFile(ProducerConformance):
    @pytest.fixture
    def harness(self, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> Harness:
        monkeypatch.setattr(QueueFile, "lock_seconds", 0.2)  # the outage is a lock
        return LocalHarness(make_config())


class TestMemory(ProducerConformance):
    @pytest.fixture
    def harness(self, make_config: MakeConfig) -> Harness:
        return InMemoryHarness(make_config(path=IN_MEMORY, queue=f"queue {next(queues)}"))
