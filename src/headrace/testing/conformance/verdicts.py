"""What becomes of a message, by what its cohort made of it."""

from __future__ import annotations

import asyncio

import pytest

from headrace.streams.contract import UNORDERED, AdvanceItem, AdvanceOutcome, Rejection
from headrace.testing.conformance.harness import ACKED, FAILED, NOBODY, REJECTED, Harness, Reader
from headrace.testing.conformance.scenario import (
    Scenarios,
    message,
    messages,
    scenario,
)


class Verdicts(Scenarios):
    @scenario
    async def test_acked_is_gone(self, harness: Harness) -> None:
        """What everybody acked is settled on the broker when `advance` returns, and does not come to the next producer."""
        await harness.publish(messages(3))
        async with Reader(harness) as reader:
            events = await reader.take(3)
            await reader.settle(events[:2], ACKED)
            assert sorted(value or b"" for value in await harness.remaining()) == [b"m2"]
            await reader.settle(events[2:], ACKED)
            assert await harness.remaining() == []
        async with Reader(harness) as reader:
            await reader.expect_quiet("everything was acked")
        assert not await harness.dead_letters()

    @scenario
    async def test_failed_comes_again(self, harness: Harness) -> None:
        """What somebody failed is kept and comes again to the same producer, until it is acked."""
        await harness.publish(messages(1))
        async with Reader(harness) as reader:
            for outcome in (FAILED, AdvanceOutcome(acked=3, failed=1), FAILED):
                (event,) = await reader.take()
                await reader.settle([event], outcome)
                assert await harness.remaining() == [b"m0"]
            (event,) = await reader.take()
            await reader.settle([event], ACKED)
            await reader.expect_quiet("it was acked")
        assert await harness.remaining() == []

    @scenario
    async def test_nobody_online_comes_again(self, harness: Harness) -> None:
        """R11: an event that met no subscriber is kept and comes again."""
        await harness.publish(messages(1))
        async with Reader(harness) as reader:
            (event,) = await reader.take()
            await reader.settle([event], NOBODY)
            assert await harness.remaining() == [b"m0"]
            (event,) = await reader.take()
            await reader.settle([event], ACKED)
        assert await harness.remaining() == []

    @scenario
    async def test_redelivery_is_not_a_hot_loop(self, harness: Harness) -> None:
        """X6, S15: what fails each time, or meets nobody, comes again with a backoff."""
        await harness.publish(messages(1))
        async with Reader(harness) as reader:
            (first,) = await reader.take()
            await reader.settle([first], NOBODY)
            hand_outs = 1
            loop = asyncio.get_running_loop()
            while loop.time() < first.at + 1.0:
                (event,) = await reader.take()
                hand_outs += event.at < first.at + 1.0
                assert hand_outs <= harness.hot, f"{hand_outs} hand-outs within {event.at - first.at:.3f} s"
                await reader.settle([event], FAILED)

    @scenario
    async def test_rejected_is_dead_lettered_and_gone(self, harness: Harness) -> None:
        """What somebody rejected and nobody failed is dead-lettered with its bytes and the reason, and comes no more."""
        await harness.publish([message(b"bad", b"k", (("h", b"1"),)), message(b"also bad", b"k"), message(b"good", b"k")])
        async with Reader(harness) as reader:
            bad, also, good = sorted(
                await reader.take(3), key=lambda event: [b"bad", b"also bad", b"good"].index(event.value or b"")
            )
            await reader.settle([bad], REJECTED)
            mixed = REJECTED._replace(acked=2)
            await reader.settle([also], mixed)
            await reader.settle([good], ACKED)
            await reader.expect_quiet("all is settled")
            assert await harness.remaining() == []
        letters = await harness.dead_letters()
        if letters is not None:
            assert [letter.message.value for letter in letters] == [b"bad", b"also bad"]
            assert letters[0].message.key == b"k"
            assert ("h", b"1") in letters[0].message.headers
            assert all(letter.reason is None or "not an order" in letter.reason for letter in letters)

    @scenario
    async def test_a_failure_outweighs_a_rejection(self, harness: Harness) -> None:
        """X5: while somebody failed it, a rejected message is kept, not dead-lettered; when nobody does, it is."""
        mixed = AdvanceOutcome(acked=1, failed=1, rejected=1, rejections=(Rejection("suite", "not an order", 1),))
        await harness.publish(messages(1))
        async with Reader(harness) as reader:
            (event,) = await reader.take()
            await reader.settle([event], mixed)
            assert await harness.remaining() == [b"m0"]
            assert not await harness.dead_letters(), "dead-lettered before everybody had it"
            (event,) = await reader.take()
            await reader.settle([event], REJECTED)
            assert await harness.remaining() == []
        letters = await harness.dead_letters()
        assert letters is None or [letter.message.value for letter in letters] == [b"m0"]

    @scenario
    async def test_counts_deliveries(self, harness: Harness) -> None:
        """The delivery count is 1 at first and grows with each failure of the message, not of the one before it."""
        await harness.publish(messages(2))
        async with Reader(harness) as reader:
            if not reader.producer.capabilities.counts_deliveries:
                pytest.skip("the producer's capabilities do not say `counts_deliveries`")
            first = await reader.take(2)
            await reader.settle(first, FAILED)
            second = await reader.take(2)
            await reader.settle(second, FAILED)
            third = await reader.take(2)
            assert [event.message.delivery_count for event in (first[0], second[0], third[0])] == [1, 2, 3]
            if reader.producer.capabilities.ordered:
                assert [event.message.delivery_count for event in (first[1], second[1], third[1])] == [1, 1, 1]

    @scenario
    async def test_unordered_events_settle_in_any_order(self, harness: Harness) -> None:
        """R12: events of the lane `UNORDERED` settle one by one, in any order, in one call."""
        await harness.publish(messages(5, key=None))
        async with Reader(harness) as reader:
            events = await reader.take(5)
            if any(event.lane is not UNORDERED for event in events):
                pytest.skip("the producer gives messages without a key a lane")
            by_value = {event.value: event for event in events}
            await reader.settle([by_value[b"m4"]], ACKED)
            await reader.advance(
                [
                    AdvanceItem(by_value[b"m3"].payload, ACKED),
                    AdvanceItem(by_value[b"m0"].payload, FAILED),
                    AdvanceItem(by_value[b"m2"].payload, REJECTED),
                ]
            )
            assert sorted(value or b"" for value in await harness.remaining()) == [b"m0", b"m1"]
            (again,) = await reader.take()
            assert again.value == b"m0"
            await reader.settle([again, by_value[b"m1"]], ACKED)
        assert await harness.remaining() == []
