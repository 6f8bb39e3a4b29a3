"""K22: the watchdog, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import NodeNotReadyError
from headrace_kafka.health import Health, Sight, Watchdog

from headrace.testing.virtual_time import in_virtual_time

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_k22_waiting_without_getting_anything_is_stuck() -> None:
    """K22: a partition that waits for longer than the patience is stuck; one that delivers, or is not read, never is."""
    watchdog = Watchdog(60.0)
    for now in range(0, 61, 10):
        assert watchdog.look(now, {ZERO: Sight(5, True), ONE: Sight(now, True)}) == []
    assert watchdog.look(61, {ZERO: Sight(5, True), ONE: Sight(61, True)}) == [ZERO]
    assert watchdog.look(70, {ZERO: Sight(5, False), ONE: Sight(61, True)}) == []
    assert watchdog.look(125, {ZERO: Sight(5, True), ONE: Sight(62, True)}) == []


class Patient:
    """A consumer that can be stuck, and a broker that can be away."""

    def __init__(self) -> None:
        self.is_away = False
        self.can_rebuild = True
        self.is_stuck = False
        self.delivered = 0
        self.tries = 0
        self.joining = 0.0
        self.health = Health("group g", 60.0, ends=self.ends, see=self.see, joining=lambda: self.joining, rebuild=self.rebuild)

    async def ends(self) -> Mapping[TopicPartition, int]:
        if self.is_away:
            raise NodeNotReadyError
        return {ZERO: 10}

    def see(self, ends: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Sight]:
        self.delivered += not self.is_stuck
        return {key: Sight(self.delivered, True) for key in ends}

    async def rebuild(self) -> bool:
        self.tries += 1
        self.is_stuck = self.is_stuck and not self.can_rebuild
        return self.can_rebuild

    @asynccontextmanager
    async def watched(self) -> Any:
        task = asyncio.create_task(self.health.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})


@in_virtual_time
async def test_k22_a_stuck_consumer_is_rebuilt_once() -> None:
    """K22: it is in trouble while it is stuck, and not any more once it was rebuilt."""
    async with Patient().watched() as patient:
        await asyncio.sleep(100)
        assert patient.health.trouble is None
        patient.is_stuck = True
        await asyncio.sleep(49)
        assert patient.tries == 0
        await asyncio.sleep(32)
        assert patient.health.rebuilds == 1
        await asyncio.sleep(100)
        assert (patient.health.rebuilds, patient.health.trouble) == (1, None)


@in_virtual_time
async def test_k22_a_broker_that_is_away_is_trouble_at_once() -> None:
    """While brokers do not answer a new connection is tried now and then; the consumer is kept until one succeeds."""
    async with Patient().watched() as patient:
        patient.is_away, patient.can_rebuild = True, False
        await asyncio.sleep(11)
        assert "do not answer" in str(patient.health.trouble)
        await asyncio.sleep(200)
        assert patient.tries > 2
        assert patient.health.rebuilds == 0
        patient.is_away = False
        await asyncio.sleep(11)
        assert patient.health.trouble is None


@in_virtual_time
async def test_a_group_that_gives_no_partitions_is_trouble() -> None:
    """A rebalance that does not end (a coordinator that cannot be had, say) is told; rebuilding would not help."""
    async with Patient().watched() as patient:
        patient.joining = 61.0
        await asyncio.sleep(11)
        assert patient.health.trouble == "group g has given this member no partitions for 61 s"
        assert patient.tries == 0
