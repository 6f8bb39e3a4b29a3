"""The in-memory broker keeps the contract, and does so the same way each time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from headrace.connector import Message
from headrace.streams.contract import SharedStreamProducer
from headrace.testing.conformance import ACKED, FAILED, DeadLetter, Harness, ProducerConformance, Reader, message, messages
from headrace.testing.memory import MemoryBroker, MemoryProducer
from headrace.testing.virtual_time import in_virtual_time, run_virtual


class MemoryHarness(Harness):
    shares_lanes = True

    def __init__(self, producer: type[MemoryProducer] = MemoryProducer) -> None:
        self.broker = MemoryBroker()
        self.producer = producer

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        run_virtual(main, patience=0.2)

    async def publish(self, messages: Sequence[Message]) -> None:
        self.broker.publish(messages)

    def create_producer(self) -> SharedStreamProducer:
        return self.producer(self.broker)

    async def remaining(self) -> Sequence[bytes | None]:
        return [waiting.value for waiting in self.broker.waiting]

    async def dead_letters(self) -> Sequence[DeadLetter]:
        return [DeadLetter(letter.message, letter.reason) for letter in self.broker.dead_letters]

    async def consumers(self) -> int:
        return len(self.broker.consumers)

    async def crash(self, producer: SharedStreamProducer) -> bool:
        assert isinstance(producer, MemoryProducer)
        self.broker.crash(producer)
        return True

    def outage(self) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def away() -> AsyncIterator[None]:
            self.broker.available = False
            try:
                yield
            finally:
                self.broker.available = True

        return away()


class TestMemoryProducer(ProducerConformance):
    @pytest.fixture
    def harness(self) -> Harness:
        return MemoryHarness()


@in_virtual_time
async def test_backoff_doubles_up_to_its_maximum() -> None:
    """A message that fails each time comes again after 1, 2, 4, 5, 5 seconds of the loop."""
    harness = MemoryHarness()
    harness.broker.backoff, harness.broker.max_backoff = 1.0, 5.0
    harness.broker.publish(messages(1))
    moments = []
    async with Reader(harness) as reader:
        for _ in range(6):
            (event,) = await reader.take()
            moments.append(event.at)
            await reader.settle([event], FAILED)
    assert [round(later - earlier, 3) for earlier, later in itertools.pairwise(moments)] == [1, 2, 4, 5, 5]


@in_virtual_time
async def test_publishing_from_another_thread_wakes_a_consumer() -> None:
    """`publish` may be called from any thread."""
    harness = MemoryHarness()
    async with Reader(harness) as reader:
        await asyncio.sleep(0)
        await asyncio.to_thread(harness.broker.publish, [message(b"from a thread")])
        (event,) = await reader.take()
        assert event.value == b"from a thread"
        await reader.settle([event], ACKED)
    assert harness.broker.waiting == []
