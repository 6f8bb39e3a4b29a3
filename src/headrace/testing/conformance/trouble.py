"""`advance` called again, cancelled, and without a broker."""

from __future__ import annotations

import pytest

from headrace.errors import SourceUnavailable
from headrace.streams.contract import AdvanceItem
from headrace.testing.conformance.harness import ACKED, FAILED, REJECTED, Harness, Reader
from headrace.testing.conformance.scenario import (
    Scenarios,
    cancel,
    messages,
    require_ordered,
    scenario,
    values,
)


class Trouble(Scenarios):
    @scenario
    async def test_advance_is_idempotent(self, harness: Harness) -> None:
        """R13: a call made again with the same items changes nothing more, whatever the verdict."""
        await harness.publish(messages(3))
        async with Reader(harness) as reader:
            events = await reader.take(3)
            for outcome, event in zip((ACKED, REJECTED, FAILED), events, strict=True):
                await reader.settle([event], outcome)
                await reader.settle([event], outcome)
            (again,) = await reader.take()
            assert again.value == b"m2"
            await reader.expect_quiet("one message failed, and is in hand")
            await reader.settle([again], ACKED)
            await reader.settle([again], ACKED)
            await reader.expect_quiet("everything was settled")
        assert await harness.remaining() == []
        letters = await harness.dead_letters()
        assert letters is None or [letter.message.value for letter in letters] == [b"m1"]

    @scenario
    async def test_a_cancelled_advance_can_be_made_again(self, harness: Harness) -> None:
        """R13: a call that was cancelled half-way is completed by the next with the same items, and ends as cancelled."""
        await harness.publish(messages(3))
        async with Reader(harness) as reader:
            events = await reader.take(3)
            items = [AdvanceItem(event.payload, ACKED) for event in events]
            for turns in range(4):  # cancelled at each of its first steps
                await cancel(harness, reader.producer.advance(items), turns)
            await reader.settle(events, ACKED)
            await reader.expect_quiet("everything was acked")
        assert await harness.remaining() == []

    @scenario
    async def test_r15_a_lane_is_not_handed_out_before_its_advance_returned(self, harness: Harness) -> None:
        """R15: when a call with a failed event is cancelled, the lane waits for the call that is made in its place."""
        await harness.publish(messages(3))
        async with Reader(harness) as reader:
            require_ordered(reader.producer)
            events = await reader.take(3)
            items = [AdvanceItem(event.payload, FAILED) for event in events]
            if await cancel(harness, reader.producer.advance(items), 1):
                await reader.expect_quiet("the call that broke the lane has not returned")
            await reader.advance(items)
            again = await reader.take(3)
            assert values(again) == [b"m0", b"m1", b"m2"]
            await reader.settle(again, ACKED)
            await reader.expect_quiet("everything was acked")
        assert await harness.remaining() == []

    @scenario
    async def test_an_outage_raises_source_unavailable(self, harness: Harness) -> None:
        """R13, X7: while the broker is away `advance` and opening raise `SourceUnavailable`; when it is back they work."""
        outage = harness.outage()
        if outage is None:
            pytest.skip("this harness cannot take the broker away")
        await harness.publish(messages(2))
        async with Reader(harness) as reader:
            first, second = await reader.take(2)
            await reader.settle([first], ACKED)
            async with outage:
                with pytest.raises(SourceUnavailable):
                    await reader.producer.advance([AdvanceItem(second.payload, ACKED)])
                other = harness.create_producer()
                async with Reader(harness, other) as unlucky:
                    assert isinstance(await unlucky.error(), SourceUnavailable)
            await reader.settle([second], ACKED)
        assert await harness.remaining() == []
