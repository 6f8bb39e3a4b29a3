"""Kafka → filters → SQLite (WAL, FULL) → commit, beside raw aiokafka and beside Airflow's way of polling. Wall time.

Ours is what `serve` runs but for the dispatch: runner, hosted producer, writer. Every way reads the same topic in a group of its
own, from its first message in hand until the last is settled. Of 100 messages one derives something, in every filter.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from headrace_kafka import KafkaConfig, KafkaConnector

from benchmarks.goals import Goal, Report
from benchmarks.latency import quantile
from benchmarks.worlds import AIRFLOW, World
from headrace import AdvanceItem, BaseEventTrigger, TriggerEvent
from headrace.runner import Observer, Runner, StreamSpec, TriggerSpec
from headrace.store import Store, TriggerDefinition
from headrace.streams.stream import StreamSettings
from headrace.testing.brokers import BrokerUnavailable, Kafka, launch
from headrace.testing.waiting import eventually

EVENTS = 40_000
THEIR_EVENTS = 3_000
"""Airflow's way reads fewer: its time grows with their number."""
PARTITIONS = 4
ROUNDS = 5
IDLE_MESSAGES = 100
VALUE = b'{"order": 4711, "region": "eu", "lines": "' + b"x" * 440 + b'"}'

AGAINST_AIRFLOW = Goal("Kafka → 10 filters → SQLite FULL → commit, against Airflow's manager and its way of polling", 40, 80)
OVER_RAW = {
    1: Goal("the same with 1 subscriber, time over raw aiokafka", 100, 40, " %", "less"),
    10: Goal("the same with 10 subscribers, time over raw aiokafka", 150, 80, " %", "less"),
}
COMMITS = Goal("broker commits a second and lane, under load", 20, 10, "", "less")
IDLE = Goal("broker → stored → committed, p99, idle, SQLite FULL", 50, 15, " ms", "less")


class Ended(BaseEventTrigger):
    """Lets one message in a hundred through, by its key."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.Ended", {}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            if message.key.endswith(b"00"):
                yield TriggerEvent({"key": message.key.decode()})


class Counting(Observer):
    """When the first message was read, and how many were settled, when."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None
        self.ended = (0.0, 0.0)
        self.settled = 0

    def on_read(self, key: Any, events: int, size: int) -> None:
        self.began = self.began or (time.perf_counter(), time.process_time())

    def on_advanced(self, key: Any, items: Sequence[AdvanceItem], seconds: float) -> None:
        assert items[-1].outcome.is_clean
        self.settled += len(items)
        self.ended = time.perf_counter(), time.process_time()


@dataclass(frozen=True)
class Taken:
    """Seconds, and how many commits the broker was sent meanwhile."""

    wall: float
    cpu: float
    commits: int = 0


class Ours:
    """A runner on the topic. A context manager: between its ends it reads."""

    def __init__(self, address: str, topic: str, subscribers: int) -> None:
        config = KafkaConfig(bootstrap_servers=(address,), topics=(topic,), group_id=f"ours-{uuid.uuid4().hex}")
        create = KafkaConnector().create_producer
        settings = StreamSettings(max_parallel_advances=KafkaConnector.capabilities.parallel_advances)
        self._stream = StreamSpec("orders", "kafka", config, lambda: create(config), settings)
        self._triggers = [
            TriggerSpec(TriggerDefinition(f"trigger-{number}", "benchmarks.Ended", {}, "orders"), Ended)
            for number in range(subscribers)
        ]
        self.observer = Counting()

    async def __aenter__(self) -> Counting:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-bench-")
        self._store = await Store.open(f"sqlite:///{Path(self._folder.name) / 'headrace.db'}")
        self._runner = Runner(self._store, [self._stream], self._triggers, observer=self.observer)
        await self._runner.start()
        return self.observer

    async def __aexit__(self, *_: object) -> None:
        await self._runner.stop(10.0)
        await self._store.aclose()
        self._folder.cleanup()


async def ours(address: str, topic: str, subscribers: int) -> Taken:
    commits = CountedCommits()
    with commits:
        async with Ours(address, topic, subscribers) as observer:
            await eventually(lambda: observer.settled >= EVENTS, 120.0)
            assert observer.began is not None
            (wall, cpu), (wall_end, cpu_end) = observer.began, observer.ended
    return Taken(wall_end - wall, cpu_end - cpu, commits.count)


class CountedCommits:
    """Counts the commits of every consumer of this process."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self._commit = commit = AIOKafkaConsumer.commit

        async def counted(consumer: Any, *arguments: Any, **options: Any) -> Any:
            self.count += 1
            return await commit(consumer, *arguments, **options)

        AIOKafkaConsumer.commit = counted

    def __exit__(self, *_: object) -> None:
        AIOKafkaConsumer.commit = self._commit


async def raw(address: str, topic: str) -> Taken:
    """The same messages, only read, in polls of the same size."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=f"raw-{uuid.uuid4().hex}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        left, began = EVENTS, (0.0, 0.0)
        while left > 0:
            found = await consumer.getmany(timeout_ms=1000, max_records=500)
            if left == EVENTS:
                began = time.perf_counter(), time.process_time()
            left -= sum(map(len, found.values()))
        return Taken(time.perf_counter() - began[0], time.process_time() - began[1])
    finally:
        await consumer.stop()


async def publish(address: str, topic: str, numbers: Sequence[int]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=0 if len(numbers) == 1 else 20)
    await producer.start()
    try:
        sent = [await producer.send(topic, VALUE, key=b"%d" % number) for number in numbers]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


async def idle_delays(address: str, topic: str) -> list[float]:
    """Seconds from sending one message, which derives something, until it is stored and committed; with pauses between."""
    delays = []
    producer = AIOKafkaProducer(bootstrap_servers=address, acks=1)
    await producer.start()
    try:
        async with Ours(address, topic, 1) as observer:
            for number in range(IDLE_MESSAGES + 5):
                sent = time.perf_counter()
                await producer.send(topic, VALUE, key=b"%d00" % number)
                await eventually(lambda wanted=number + 1: observer.settled >= wanted, 60.0)  # type: ignore[misc]
                delays.append(observer.ended[0] - sent)
                await asyncio.sleep(0.07)  # an idle lane: its last commit is long ago
    finally:
        await producer.stop()
    return delays[5:]


def report() -> Report:
    found = Report("kafka")
    try:
        broker = launch("kafka")
    except BrokerUnavailable as error:
        found.missing.append(str(error))
        return found
    assert isinstance(broker, Kafka)
    with broker:
        _measure(found, broker)
    return found


def _measure(found: Report, broker: Kafka) -> None:
    address = broker.address
    topic = broker.create_topic(f"bench-{uuid.uuid4().hex}", partitions=PARTITIONS)
    asyncio.run(publish(address, topic, range(EVENTS)))
    ones, tens, raws = [], [], []
    for _ in range(ROUNDS):
        raws.append(asyncio.run(raw(address, topic)))
        ones.append(asyncio.run(ours(address, topic, 1)))
        tens.append(asyncio.run(ours(address, topic, 10)))
    if AIRFLOW.exists():
        few = broker.create_topic(f"bench-{uuid.uuid4().hex}", partitions=PARTITIONS)
        asyncio.run(publish(address, few, range(THEIR_EVENTS)))
        site_packages = str(Path(aiokafka.__file__).parent.parent)
        with World("airflow", "hopping.py", site_packages) as world:
            job = {"address": address, "topic": few, "events": THEIR_EVENTS, "subscribers": 10}
            theirs = statistics.median(world.run(job)[0] / THEIR_EVENTS for _ in range(3))
        mine = statistics.median(taken.wall for taken in tens) / EVENTS
        found.add(AGAINST_AIRFLOW, theirs / mine, f"{1 / mine:,.0f} and {1 / theirs:,.0f} messages/s")
    else:
        found.missing.append("Kafka in Airflow's way: its environment is not there; `make bench` prepares it")
    for goal, figures in ((OVER_RAW[1], ones), (OVER_RAW[10], tens)):
        over = statistics.median(100 * (taken.wall / bare.wall - 1) for taken, bare in zip(figures, raws, strict=True))
        cpu = statistics.median(100 * (taken.cpu / bare.cpu - 1) for taken, bare in zip(figures, raws, strict=True))
        rates = [f"{EVENTS / statistics.median(taken.wall for taken in each):,.0f}" for each in (figures, raws)]
        found.add(goal, over, f"{' and '.join(rates)} messages/s; CPU time +{cpu:.0f} %")
    found.add(COMMITS, max(taken.commits / taken.wall for taken in tens))
    slow = broker.create_topic(f"bench-{uuid.uuid4().hex}")
    delays = asyncio.run(idle_delays(address, slow))
    found.add(IDLE, quantile(delays, 0.99) * 1e3, f"p50 {quantile(delays, 0.5) * 1e3:.1f} ms, {len(delays)} messages")
