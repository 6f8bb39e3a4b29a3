"""Pausing and stopping, dying, and what comes after."""

from __future__ import annotations

import asyncio

import pytest

from headrace.testing.conformance.harness import ACKED, Harness, Reader
from headrace.testing.conformance.scenario import (
    Scenarios,
    message,
    messages,
    require_pause,
    scenario,
    several_lanes,
    values,
)


class Ending(Scenarios):
    @scenario
    async def test_pause_holds_everything(self, harness: Harness) -> None:
        """R17: while paused nothing is handed out and what is in flight settles; `resume` goes on."""
        async with Reader(harness) as reader:
            require_pause(reader.producer)
            await harness.publish(messages(1))
            in_flight = await reader.take()
            reader.producer.pause()
            await harness.publish(messages(3, start=1))
            await reader.settle(in_flight, ACKED)
            await reader.expect_quiet("the producer is paused")
            reader.producer.resume()
            events = await reader.take(3)
            assert sorted(value or b"" for value in values(events)) == [b"m1", b"m2", b"m3"]
            await reader.settle(events, ACKED)
        assert await harness.remaining() == []

    @scenario
    async def test_pause_holds_one_lane(self, harness: Harness) -> None:
        """R17: a paused lane is held, the others go on; `resume` hands the lane out in order."""
        async with Reader(harness) as reader:
            require_pause(reader.producer)
            held, others = await several_lanes(harness, reader)
            reader.producer.pause(held.lane)
            await reader.settle([held], ACKED)
            await harness.publish([message(b"held 1", held.message.key), message(b"held 2", held.message.key)])
            await harness.publish([message(b"free", key) for key in others])
            assert set(values(await reader.take(len(others)))) == {b"free"}
            await reader.expect_quiet("its lane is paused")
            reader.producer.resume(held.lane)
            assert values(await reader.take(2)) == [b"held 1", b"held 2"]

    @scenario
    async def test_aclose_is_prompt_and_releases(self, harness: Harness) -> None:
        """A pull that waits ends when it is cancelled, `aclose` returns soon, and the broker sees the producer no more."""
        before = await harness.consumers()
        await harness.publish(messages(1))
        reader = Reader(harness)
        async with reader:
            await reader.take()
        assert await harness.consumers() == before
        async with Reader(harness) as idle:
            await idle.take()
            await idle.settle(idle.events, ACKED)
            await idle.stop_reading()
            began = asyncio.get_running_loop().time()
            await idle.producer.aclose()
            assert asyncio.get_running_loop().time() - began < harness.patience / 2
            idle.producer = harness.create_producer()  # aclose is called once
        assert await harness.consumers() == before

    @scenario
    async def test_the_next_producer_continues(self, harness: Harness) -> None:
        """X3: what was settled is gone, what was not is left to the next producer, in order, soon and uncounted."""
        await harness.publish(messages(5))
        async with Reader(harness) as reader:
            events = await reader.take(5)
            await reader.settle(events[:2], ACKED)
        assert len(await harness.remaining()) == 3, "closing settles nothing by itself"
        async with Reader(harness) as reader:
            events = await reader.take(3)
            assert sorted(value or b"" for value in values(events)) == [b"m2", b"m3", b"m4"]
            if reader.producer.capabilities.ordered:
                assert values(events) == [b"m2", b"m3", b"m4"]
            await reader.settle(events, ACKED)
        assert await harness.remaining() == []
        assert not await harness.dead_letters()

    @scenario
    async def test_what_a_crashed_producer_held_comes_again(self, harness: Harness) -> None:
        """X3: a producer that was killed settles nothing; when its lease has ended another gets what it held, in order."""
        await harness.publish(messages(4))
        crashing = Reader(harness)
        await crashing.__aenter__()
        events = await crashing.take(4)
        await crashing.settle(events[:1], ACKED)
        await crashing.stop_reading()
        if not await harness.crash(crashing.producer):
            await crashing.close()
            pytest.skip("this harness cannot crash a producer")
        async with Reader(harness) as reader:
            again = await reader.take(3)
            assert sorted(value or b"" for value in values(again)) == [b"m1", b"m2", b"m3"]
            if reader.producer.capabilities.ordered:
                assert values(again) == [b"m1", b"m2", b"m3"]
            await reader.settle(again, ACKED)
            await reader.expect_quiet("everything was acked")
        assert await harness.remaining() == []

    @scenario
    async def test_a_lane_is_with_one_producer_at_a_time(self, harness: Harness) -> None:
        """Two producers on one subscription: no message is with both, and no lane is."""
        if not harness.shares_lanes:
            pytest.skip("this broker does not share lanes between producers at once")
        async with Reader(harness) as one, Reader(harness) as two:
            for number in range(10):
                await harness.publish([message(f"{number} {n}".encode(), f"key {n}".encode()) for n in range(5)])
            await one.until(lambda: len(one.events) + len(two.events) >= 50, beside=two)
            for reader in (one, two):
                await reader.take(len(reader.events))
                await reader.expect_quiet("every message is with one of them")
            assert not {event.id for event in one.events} & {event.id for event in two.events}
            assert not {event.lane for event in one.events} & {event.lane for event in two.events}
            for reader in (one, two):
                await reader.settle(reader.events, ACKED)
        assert await harness.remaining() == []
