"""Commits in virtual time: when they are sent, and what a rebalance or a refusal does to those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from headrace_kafka.commits import Commits
from headrace_kafka.lanes import Lane, Lanes

from headrace import SourceMisconfigured, SourceUnavailable
from headrace.testing.virtual_time import in_virtual_time


class Broker:
    """Takes commits after `delay` seconds, or fails the next ones."""

    def __init__(self, *, partitions: int = 1, delay: float = 0.001, **options: Any) -> None:
        self.lanes = Lanes(acknowledging=True)
        self.delay = delay
        self.failures: list[Exception] = []
        self.received: list[tuple[float, dict[TopicPartition, int]]] = []
        settings = {"interval": 0.05, "again_after": 1000.0, "patience": 5.0, **options}
        self.commits = Commits(self.lanes, self._take, **settings, explain=lambda error: SourceMisconfigured(str(error)))
        self.assign(range(partitions), unbroken=True)

    def assign(self, partitions: Any, *, unbroken: bool) -> None:
        for lane in self.lanes.assign([TopicPartition("t", number) for number in partitions], unbroken=unbroken).new:
            lane.place(0, 0)
        self.commits.allow()
        self.commits.notify()

    async def _take(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        await asyncio.sleep(self.delay)
        if self.failures:
            raise self.failures.pop(0)
        self.received.append((asyncio.get_running_loop().time(), dict(offsets)))
        return offsets

    def lane(self, number: int = 0) -> Lane:
        found = self.lanes.get(TopicPartition("t", number))
        assert found is not None
        return found

    async def settle(self, offset: int, number: int = 0) -> None:
        lane = self.lane(number)
        lane.read(offset + 1)
        lane.hand_out(offset, offset + 1)
        await self.commits.acknowledged(lane, lane.settle(offset))

    @asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.create_task(self.commits.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})


@in_virtual_time
async def test_k29_at_once_when_idle_then_one_for_all() -> None:
    """K29: the first commit goes at once, and what all lanes settle within the interval goes in the next."""
    async with Broker(partitions=3).running() as broker:
        await asyncio.sleep(1)
        await broker.settle(0)
        await asyncio.gather(*(broker.settle(n, n % 3) for n in range(1, 10)))
        assert [round(at - 1, 3) for at, _ in broker.received] == [0.001, 0.051]
        assert broker.received[1][1] == {TopicPartition("t", 0): 10, TopicPartition("t", 1): 8, TopicPartition("t", 2): 9}


@in_virtual_time
async def test_k29_never_more_often_than_the_interval() -> None:
    """K29: 10 000 events, each settled by itself over ten seconds, cost at most twenty commits a second."""
    async with Broker().running() as broker:
        for offset in range(10_000):
            lane = broker.lane()
            lane.read(offset + 1)
            lane.hand_out(offset, offset + 1)
            lane.settle(offset)
            broker.commits.request()
            await asyncio.sleep(0.001)
        await broker.commits.acknowledged(broker.lane(), 10_000)
        times = [at for at, _ in broker.received]
        assert all(later - earlier > 0.0499 for earlier, later in pairwise(times))
        assert len(times) <= 10 * 20 + 2


@in_virtual_time
async def test_k29_one_at_a_time() -> None:
    """A slow broker gets no second commit before it answered the first; what settled meanwhile goes together."""
    async with Broker(delay=1.0).running() as broker:
        await asyncio.gather(*(broker.settle(offset) for offset in range(5)))
        assert [list(offsets.values()) for _, offsets in broker.received] == [[5]]


@in_virtual_time
async def test_k14_unchanged_positions_are_committed_again() -> None:
    """K14: on a timer, without anything settled."""
    async with Broker(again_after=100.0).running() as broker:
        await asyncio.sleep(350)
        assert [round(at) for at, _ in broker.received] == [100, 200, 300]


@in_virtual_time
async def test_k3_a_late_commit_waits_for_the_next_assignment() -> None:
    """K3: refused for its generation, nothing is sent until the next assignment; then the kept lane's position is."""
    async with Broker().running() as broker:
        broker.failures = [errors.CommitFailedError()]
        settling = asyncio.create_task(broker.settle(4))
        await asyncio.sleep(1)
        later = asyncio.create_task(broker.settle(5))
        await asyncio.sleep(1)
        assert not broker.received
        broker.assign([0], unbroken=True)
        await asyncio.gather(settling, later)
        assert broker.received[0][1] == {TopicPartition("t", 0): 6}


@in_virtual_time
async def test_k1_who_waits_for_a_lost_lane_waits_no_longer() -> None:
    """K1: `advance` of a lane that is lost returns; no error comes of it."""
    async with Broker(partitions=2, delay=1000.0).running() as broker:
        settling = asyncio.create_task(broker.settle(4))
        await asyncio.sleep(1)
        await broker.commits.forbid(0.5)
        broker.assign([1], unbroken=True)
        await asyncio.wait_for(settling, 0.1)


@in_virtual_time
async def test_k21_forbidding_waits_for_what_settles_in_time_and_no_longer() -> None:
    """K21: within the grace what settles is committed; what does not is not waited for, and an unanswered commit is given up."""
    async with Broker(delay=0.1).running() as broker:
        loop = asyncio.get_running_loop()
        lane = broker.lane()
        lane.read(1)
        lane.hand_out(0, 1)
        forbidding = asyncio.create_task(broker.commits.forbid(10.0))
        await asyncio.sleep(1)
        lane.settle(0)
        broker.commits.request()
        await forbidding
        assert round(loop.time(), 2) == 1.1
        broker.commits.allow()
        broker.delay = 1000.0
        lane.read(2)
        lane.hand_out(1, 2)
        waiting = asyncio.create_task(broker.commits.acknowledged(lane, lane.settle(1)))
        await broker.commits.forbid(2.0)
        assert round(loop.time(), 2) == 3.1
        await asyncio.sleep(0.5)
        assert broker.commits._in_flight is None
        waiting.cancel()


@in_virtual_time
async def test_a_refusal_reaches_who_waits_and_the_next_call_tries_again() -> None:
    """What a refused commit means is raised once; the next call asks again."""
    async with Broker().running() as broker:
        broker.failures = [errors.GroupAuthorizationFailedError("g")]
        with pytest.raises(SourceMisconfigured):
            await broker.settle(4)
        await broker.settle(4)
        assert broker.lane().committed == 5


@in_virtual_time
async def test_no_answer_is_unavailable() -> None:
    """X7: after the patience `advance` says so; the commit goes on, and counts when the answer comes."""
    async with Broker(delay=8.0).running() as broker:
        with pytest.raises(SourceUnavailable, match="position 5 in t/0 within 5 s"):
            await broker.settle(4)
        await broker.commits.acknowledged(broker.lane(), 5)
        assert len(broker.received) == 1


@in_virtual_time
async def test_cancelling_who_waits_cancels_no_commit() -> None:
    """A cancelled `advance` leaves the commit on its way."""
    async with Broker(delay=1.0).running() as broker:
        settling = asyncio.create_task(broker.settle(4))
        await asyncio.sleep(0.5)
        settling.cancel()
        await broker.commits.acknowledged(broker.lane(), 5)
        assert len(broker.received) == 1
