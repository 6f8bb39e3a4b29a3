"""The contract of a producer, as tests. Subclass `ProducerConformance` and give it a `Harness` for your broker:

```python
class TestMyProducer(ProducerConformance):
    @pytest.fixture
    def harness(self, tmp_path):
        return MyHarness(tmp_path)
```

The suite drives the producer directly, without the engine, by `open_batches`, `advance`, `pause`, `resume` and `aclose`. What
the producer's `capabilities` do not claim, and what the harness cannot do, is skipped with its reason. Needs pytest, no plugin.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

import pytest

from headrace.connector import Message
from headrace.errors import SourceUnavailable
from headrace.streams.contract import UNORDERED, AdvanceItem, AdvanceOutcome, Rejection, SharedStreamProducer
from headrace.testing.harness import ACKED, FAILED, NOBODY, REJECTED, DeadLetter, Event, Harness, Reader

__all__ = ["ACKED", "FAILED", "NOBODY", "REJECTED", "DeadLetter", "Event", "Harness", "ProducerConformance", "Reader"]

Suite = TypeVar("Suite", bound="ProducerConformance")


def scenario(test: Callable[[Suite, Harness], Coroutine[Any, Any, None]]) -> Callable[[Suite, Harness], None]:
    """Make an async scenario a plain test that runs on the harness' loop."""

    @functools.wraps(test)
    def run(self: Suite, harness: Harness) -> None:
        async def main() -> None:
            async with harness:
                await test(self, harness)

        harness.run(main())

    return run


def messages(count: int, *, key: bytes | None = b"k", start: int = 0, prefix: str = "m") -> list[Message]:
    """Messages whose values say their number."""
    return [message(f"{prefix}{number}".encode(), key) for number in range(start, start + count)]


def message(value: bytes | None, key: bytes | None = b"k", headers: tuple[tuple[str, bytes | None], ...] = ()) -> Message:
    return Message(value=value, key=key, headers=headers, id="", source="", timestamp=0.0)


def values(events: Sequence[Event]) -> list[bytes | None]:
    return [event.value for event in events]


def require_ordered(producer: SharedStreamProducer) -> None:
    if not producer.capabilities.ordered:
        pytest.skip("the producer's capabilities do not say `ordered`")


class ProducerConformance:
    """Subclass this and define the fixture `harness`; override a scenario only to skip it, with the reason."""

    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError("define the fixture `harness`, which returns a Harness for your broker")

    # --- opening and handing out --------------------------------------------------------------------------------------

    @scenario
    async def test_connects_when_opened_and_not_before(self, harness: Harness) -> None:
        """A producer connects when its stream is opened: not in the factory, and not to be closed unopened."""
        before = await harness.consumers()
        unopened = harness.create_producer()
        assert await harness.consumers() == before, "creating a producer must not connect it"
        async with asyncio.timeout(harness.patience):
            await unopened.aclose()
        await harness.publish(messages(1))
        async with Reader(harness) as reader:
            await reader.take()
            if before is not None:
                assert await harness.consumers() == before + 1

    @scenario
    async def test_hands_out_what_was_published(self, harness: Harness) -> None:
        """Value, key and headers arrive byte for byte, with a source and a time."""
        sent = [message(b'{"n": 1}', b"k", (("type", b"order"), ("trace", b"\x00\xff"))), message(b"\x00\xfe\xff", b"\xff\x00")]
        await harness.publish(sent)
        async with Reader(harness) as reader:
            got = await reader.take(2)
            by_value = {event.value: event.message for event in got}
            for one in sent:
                assert one.value in by_value
                assert by_value[one.value].key == one.key
                assert by_value[one.value].headers == one.headers
            for event in got:
                assert event.message.source
                assert isinstance(event.message.timestamp, float)

    @scenario
    async def test_carries_every_legal_message(self, harness: Harness) -> None:
        """K25: null and empty values, no key and an empty key, repeated and null headers arrive as they were sent."""
        cases = {
            "null value": message(None, headers=(("case", b"null value"),)),
            "empty value": message(b"", headers=(("case", b"empty value"),)),
            "no key": message(b"x", None, (("case", b"no key"),)),
            "empty key": message(b"x", b"", (("case", b"empty key"),)),
            "null header": message(b"x", headers=(("case", b"null header"), ("h", None))),
            "repeated header": message(b"x", headers=(("case", b"repeated header"), ("h", b"2"), ("h", b"1"))),
        }
        sent = {case: one for case, one in cases.items() if case not in harness.cannot_carry}
        await harness.publish(list(sent.values()))
        async with Reader(harness) as reader:
            events = await reader.take(len(sent))
            got = {(dict(event.message.headers)["case"] or b"").decode(): event.message for event in events}
            assert got.keys() == sent.keys()
            for case, one in sent.items():
                assert (got[case].value, got[case].key, got[case].headers) == (one.value, one.key, one.headers), case
            await reader.settle(events, ACKED)
            assert await harness.remaining() == []

    @scenario
    async def test_ids_are_unique_and_stable(self, harness: Harness) -> None:
        """Every message has an id of its own, also beside an equal one, and keeps it when it comes again."""
        await harness.publish([message(b"equal"), message(b"equal"), message(b"equal", None), message(b"other", b"other")])
        async with Reader(harness) as reader:
            first = await reader.take(4)
            ids = [event.id for event in first]
            assert None not in ids, "no id: nothing is deduplicated; see get_event_id"
            assert len(set(ids)) == 4, f"ids must differ: {ids}"
            for lane in {event.lane for event in first}:
                await reader.settle([event for event in first if event.lane == lane], FAILED)
            again = await reader.take(4)
            assert Counter(event.id for event in again) == Counter(ids), "ids must be the same on every redelivery"

    @scenario
    async def test_lanes_keep_the_order_of_their_key(self, harness: Harness) -> None:
        """Messages with one key are in one lane and come in the order they were published."""
        keys = [b"a", b"b", b"c"]
        await harness.publish([message(f"{number}".encode(), keys[number % 3]) for number in range(30)])
        async with Reader(harness) as reader:
            require_ordered(reader.producer)
            events = await reader.take(30)
            for key in keys:
                mine = [event for event in events if event.message.key == key]
                assert len({event.lane for event in mine}) == 1, f"the messages of key {key!r} are in several lanes"
                assert values(mine) == [f"{n}".encode() for n in range(30) if keys[n % 3] == key]

    @scenario
    async def test_hands_out_what_is_published_while_open(self, harness: Harness) -> None:
        """A stream that waits gets new messages without being opened again."""
        async with Reader(harness) as reader:
            for number in range(3):
                await reader.expect_quiet("nothing more was published")
                await harness.publish(messages(1, start=number))
                assert values(await reader.take()) == [f"m{number}".encode()]

    @scenario
    async def test_a_large_backlog_comes_once_and_in_order(self, harness: Harness) -> None:
        """2000 messages, settled as they come, are each handed out once, in the order of their lanes."""
        sent = [message(f"{n}".encode(), f"key {n % 10}".encode()) for n in range(2000)]
        await harness.publish(sent)
        async with Reader(harness) as reader:
            got: list[Event] = []
            while len(got) < len(sent):
                more = await reader.take(min(100, len(sent) - len(got)))
                await reader.settle(more, ACKED)
                got += more
            assert Counter(values(got)) == Counter(one.value for one in sent)
            if reader.producer.capabilities.ordered:
                for remainder in range(10):
                    numbers = [int(event.value or b"") for event in got if event.message.key == f"key {remainder}".encode()]
                    assert numbers == sorted(numbers)
            await reader.expect_quiet("everything was settled")
            assert await harness.remaining() == []

    # --- verdicts -----------------------------------------------------------------------------------------------------

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

    # --- ordered lanes ------------------------------------------------------------------------------------------------

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
            broken, others = await self._several_lanes(harness, reader)
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

    # --- advance under trouble ----------------------------------------------------------------------------------------

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
                await self._cancel(harness, reader.producer.advance(items), turns)
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
            if await self._cancel(harness, reader.producer.advance(items), 1):
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

    # --- pressure -----------------------------------------------------------------------------------------------------

    @scenario
    async def test_pause_holds_everything(self, harness: Harness) -> None:
        """R17: while paused nothing is handed out and what is in flight settles; `resume` goes on."""
        async with Reader(harness) as reader:
            self._require_pause(reader.producer)
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
            self._require_pause(reader.producer)
            held, others = await self._several_lanes(harness, reader)
            reader.producer.pause(held.lane)
            await reader.settle([held], ACKED)
            await harness.publish([message(b"held 1", held.message.key), message(b"held 2", held.message.key)])
            await harness.publish([message(b"free", key) for key in others])
            assert set(values(await reader.take(len(others)))) == {b"free"}
            await reader.expect_quiet("its lane is paused")
            reader.producer.resume(held.lane)
            assert values(await reader.take(2)) == [b"held 1", b"held 2"]

    # --- the end ------------------------------------------------------------------------------------------------------

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

    # --- helpers ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _require_pause(producer: SharedStreamProducer) -> None:
        if type(producer).pause is SharedStreamProducer.pause:
            pytest.skip("the producer does not implement pause and resume")

    @staticmethod
    async def _several_lanes(harness: Harness, reader: Reader) -> tuple[Event, dict[bytes, Hashable]]:
        """Have one event of each of some lanes; settle all but one, and return it and a key of each other lane."""
        await harness.publish([message(b"first", f"lane {number}".encode()) for number in range(12)])
        events = await reader.take(12)
        lanes = {event.lane: event for event in events if event.message.key is not None}
        if len(lanes) < 2:
            pytest.skip("the broker has one lane")
        chosen = next(iter(lanes.values()))
        await reader.settle([event for event in events if event.lane != chosen.lane], ACKED)
        behind = [event for event in events if event.lane == chosen.lane and event is not chosen]
        if behind:  # several keys in a lane: leave one event in it, the last
            await reader.settle([chosen, *behind[:-1]], ACKED)
            chosen = behind[-1]
        return chosen, {event.message.key or b"": lane for lane, event in lanes.items() if lane != chosen.lane}

    @staticmethod
    async def _cancel(harness: Harness, call: Coroutine[Any, Any, None], turns: int) -> bool:
        """Start a call, let the loop turn a few times, cancel it. False: it was done by then."""
        task = asyncio.create_task(call)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        _, pending = await asyncio.wait([task], timeout=harness.patience)
        assert not pending, "a cancelled advance must end at once"
        if not task.cancelled():
            task.result()
        return task.cancelled()
