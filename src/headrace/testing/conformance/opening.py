"""Opening a stream, and what is handed out."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.testing.conformance.harness import ACKED, FAILED, Event, Harness, Reader
from headrace.testing.conformance.scenario import (
    Scenarios,
    message,
    messages,
    require_ordered,
    scenario,
    values,
)


class Opening(Scenarios):
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
