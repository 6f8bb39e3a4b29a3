"""R15: a lane whose event failed. For producers whose capabilities say `ordered`."""

from __future__ import annotations

from headrace.streams.contract import AdvanceItem
from headrace.testing.conformance.harness import ACKED, FAILED, NOBODY, REJECTED, Harness, Reader
from headrace.testing.conformance.scenario import (
    Scenarios,
    message,
    messages,
    require_ordered,
    scenario,
    several_lanes,
    values,
)


class OrderedLanes(Scenarios):
    @scenario
    async def test_r15_a_broken_lane_is_handed_out_again_from_the_failed_event(self, harness: Harness) -> None:
        """R15: after a failure the lane comes again from the failed event, in order, and nothing of the old run."""
        await harness.publish(messages(6))
        async with Reader(harness) as reader:
            require_ordered(reader.producer)
            events = await reader.take(6)
            items = [AdvanceItem(event.payload, ACKED) for event in events[:2]]
            items += [AdvanceItem(event.payload, FAILED) for event in events[2:]]
            await reader.advance(items)
            assert sorted(value or b"" for value in await harness.remaining()) == [b"m2", b"m3", b"m4", b"m5"]
            again = await reader.take(4)
            assert values(again) == [b"m2", b"m3", b"m4", b"m5"]
            await reader.settle(again, ACKED)
            await reader.expect_quiet("everything was acked")
        assert await harness.remaining() == []

    @scenario
    async def test_r15_what_is_behind_a_failed_event_waits_for_it(self, harness: Harness) -> None:
        """R15: what is published to a lane while its failed event waits comes behind it."""
        await harness.publish(messages(2))
        async with Reader(harness) as reader:
            require_ordered(reader.producer)
            await reader.settle(await reader.take(2), FAILED)
            await harness.publish(messages(2, start=2))
            again = await reader.take(4)
            assert values(again) == [b"m0", b"m1", b"m2", b"m3"]
            await reader.settle(again, ACKED)
        assert await harness.remaining() == []

    @scenario
    async def test_r15_a_rejection_before_the_failed_event_stays_settled(self, harness: Harness) -> None:
        """R15: in one call, what is before the failed event is settled, what is behind it is not."""
        await harness.publish(messages(3))
        async with Reader(harness) as reader:
            require_ordered(reader.producer)
            first, second, third = await reader.take(3)
            await reader.advance(
                [AdvanceItem(first.payload, REJECTED), AdvanceItem(second.payload, NOBODY), AdvanceItem(third.payload, FAILED)]
            )
            assert sorted(value or b"" for value in await harness.remaining()) == [b"m1", b"m2"]
            again = await reader.take(2)
            assert values(again) == [b"m1", b"m2"]
            await reader.settle(again, ACKED)
        letters = await harness.dead_letters()
        assert letters is None or [letter.message.value for letter in letters] == [b"m0"]

    @scenario
    async def test_a_broken_lane_does_not_stop_the_others(self, harness: Harness) -> None:
        """R12: while one lane waits for its failed event, other lanes are handed out and settled."""
        async with Reader(harness) as reader:
            broken, others = await several_lanes(harness, reader)
            for _ in range(2):  # the waits grow
                await reader.settle([broken], FAILED)
                (broken,) = await reader.take()
            await reader.settle([broken], FAILED)
            await harness.publish([message(b"more", key) for key in others])
            got = await reader.take(len(others) + 1)
            assert {event.lane for event in got[:-1]} == set(others.values()), "other lanes must not wait for a broken one"
            assert got[-1].lane == broken.lane
            await reader.settle(got, ACKED)
        assert await harness.remaining() == []

    @scenario
    async def test_late_items_of_an_old_run_are_harmless(self, harness: Harness) -> None:
        """R15: a settlement that names an earlier hand-out changes nothing in the lane's new run."""
        await harness.publish(messages(4))
        async with Reader(harness) as reader:
            require_ordered(reader.producer)
            old = await reader.take(4)
            await reader.settle(old, FAILED)
            new = await reader.take(4)
            await reader.settle(old[1:], FAILED)
            await reader.settle(old[:1], FAILED)
            await reader.settle(new, ACKED)
            await reader.expect_quiet("the new run was acked")
        assert await harness.remaining() == []
