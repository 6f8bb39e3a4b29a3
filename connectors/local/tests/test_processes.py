"""The file between real processes: published to from outside, and consumed by processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace_local import LocalConnector

from headrace.testing.conformance import ACKED, Reader, message, messages
from headrace.testing.waiting import eventually

from .conftest import LocalHarness, MakeConfig

PUBLISH = """
import asyncio, sys
from headrace import Message
from headrace_local import LocalConfig, LocalConnector

async def main():
    path, count = sys.argv[1], int(sys.argv[2])
    for number in range(count):
        value = b"%d" % number
        sent = Message(value=value, key=b"k%d" % (number % 3), id="", source="", timestamp=0.0)
        await LocalConnector().publish(LocalConfig(path=path), [sent])
        print(number, flush=True)

asyncio.run(main())
"""

CONSUME = """
import asyncio, sys
from headrace_local import LocalConfig, LocalConnector

async def main():
    config = LocalConfig(path=sys.argv[1], visibility_timeout=0.5, poll_interval=0.02)
    async for batch in LocalConnector().create_producer(config).open_batches():
        for message, _ in batch:
            print(message.value.decode(), flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def process(script: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", script, *arguments, stdout=subprocess.PIPE)
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def lines(running: asyncio.subprocess.Process, count: int) -> list[str]:
    assert running.stdout is not None
    return [(await running.stdout.readline()).decode().strip() for _ in range(count)]


async def test_messages_of_another_process_arrive_while_open(make_config: MakeConfig) -> None:
    """`headrace publish` beside a running `serve`: everything arrives once, in the order of its key."""
    config = make_config()
    async with Reader(LocalHarness(config)) as reader, process(PUBLISH, config.path, "60") as publisher:
        await lines(publisher, 60)
        events = await reader.take(60)
        for key in (b"k0", b"k1", b"k2"):
            mine = [int(event.value or b"") for event in events if event.message.key == key]
            assert mine == sorted(mine)
            assert len(mine) == 20
        await reader.settle(events, ACKED)
        await reader.expect_quiet("everything was acked")


async def test_x3_what_a_killed_process_held_comes_again(make_config: MakeConfig) -> None:
    """A consumer killed with SIGKILL loses nothing: when its lease has ended another gets it all, in order."""
    config = make_config(visibility_timeout=0.5)
    harness = LocalHarness(config)
    await harness.publish(messages(5))
    async with process(CONSUME, config.path) as consumer:
        assert await lines(consumer, 5) == ["m0", "m1", "m2", "m3", "m4"]
        os.kill(consumer.pid, signal.SIGKILL)
        await consumer.wait()
        async with Reader(harness) as reader:
            events = await reader.take(5)
            assert [event.value for event in events] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
            assert {event.message.delivery_count for event in events} == {2}
            await reader.settle(events, ACKED)
    assert await harness.remaining() == []


async def test_a_publisher_killed_at_any_moment_leaves_whole_batches(make_config: MakeConfig) -> None:
    """What it was told is published is there after SIGKILL; of what it was about to publish, a batch is there or not."""
    config = make_config()
    harness = LocalHarness(config)
    async with process(PUBLISH, config.path, "100000") as publisher:
        await lines(publisher, 20)
        os.kill(publisher.pid, signal.SIGKILL)
        await publisher.wait()
        assert publisher.stdout is not None
        confirmed = 20 + len((await publisher.stdout.read()).split())
    there = sorted(int(value or b"") for value in await harness.remaining())
    assert there in (list(range(confirmed)), list(range(confirmed + 1)))
    await LocalConnector().publish(config, [message(b"after")])
    assert len(await harness.remaining()) == len(there) + 1


async def test_x16_two_processes_share_the_lanes(make_config: MakeConfig) -> None:
    """Replicas on one file: together they get everything, and no message twice."""
    config = make_config()
    harness = LocalHarness(config)
    async with process(CONSUME, config.path) as one, process(CONSUME, config.path) as two:
        await eventually(lambda: _both_are_there(harness))
        got: list[str] = []

        async def collect(consumer: asyncio.subprocess.Process) -> None:
            assert consumer.stdout is not None
            while len(got) < 200:
                got.append((await consumer.stdout.readline()).decode().strip())

        collectors = [asyncio.create_task(collect(consumer)) for consumer in (one, two)]
        for start in range(0, 200, 20):
            await harness.publish([message(f"{n}".encode(), f"key {n}".encode()) for n in range(start, start + 20)])
        await asyncio.wait(collectors, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for collector in collectors:
            collector.cancel()
        await asyncio.wait(collectors)
        assert sorted(map(int, got)) == list(range(200))


async def _both_are_there(harness: LocalHarness) -> bool:
    return await harness.consumers() == 2
