"""A poll batch in columns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any

import pytest

from headrace.connector import Message
from headrace.streams.batch import UNKNOWN_SIZE, EventBatch
from headrace.streams.contract import UNORDERED, AdvanceItem, Capabilities, SharedStreamProducer


class Plain(SharedStreamProducer):
    """Overrides nothing that describes an event."""

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        yield None, None

    async def advance(self, batch: Sequence[AdvanceItem]) -> None: ...


class Described(Plain):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.lanes_asked: list[Any] = []
        self.ids_asked: list[Any] = []

    def get_advance_lane(self, broker_payload: tuple[Hashable, str | None]) -> Hashable:
        self.lanes_asked.append(broker_payload)
        return broker_payload[0]

    def get_event_id(self, broker_payload: tuple[Hashable, str | None]) -> str | None:
        self.ids_asked.append(broker_payload)
        return broker_payload[1]


def message(name: str, value: bytes = b"value") -> Message:
    return Message(value=value, id=name, source="orders", timestamp=0.0, key=b"k", headers=(("h", b"v"),))


def test_a_producer_that_overrides_nothing_costs_two_columns() -> None:
    """Raw events of unknown size, the default lane and no ids leave their columns None."""
    batch = EventBatch.collect(Plain(), [({"n": 1}, 1), ({"n": 2}, 2)])
    assert (batch.lane, batch.lanes, batch.ids, batch.sizes) == (None, None, None, None)
    assert list(batch) == [({"n": 1}, 1), ({"n": 2}, 2)]
    assert batch.byte_size == 2 * UNKNOWN_SIZE
    assert batch.id_at(0) is None


def test_r12_lane_and_id_are_asked_once_per_event_in_order() -> None:
    """R12: `get_advance_lane` (and `get_event_id`) is called once per event, in fan-out order."""
    producer = Described()
    pairs = [("a", (1, "x")), ("b", (2, None)), ("c", (1, "z"))]
    batch = EventBatch.collect(producer, pairs)
    assert producer.lanes_asked == producer.ids_asked == [payload for _, payload in pairs]
    assert batch.lanes == [1, 2, 1]
    assert [batch.id_at(i) for i in range(3)] == ["x", None, "z"]
    assert [batch.lane_at(i) for i in range(3)] == [1, 2, 1]


def test_events_of_one_lane_share_it() -> None:
    """One lane for all is said once."""
    batch = EventBatch.collect(Described(), [("a", (UNORDERED, None)), ("b", (UNORDERED, None))])
    assert batch.lane is UNORDERED
    assert batch.lanes is None


def test_r12_an_unhashable_lane_raises() -> None:
    """R12: a lane that cannot be hashed fails the poll, with a message that says what to return."""
    with pytest.raises(TypeError, match="get_advance_lane must return something hashable"):
        EventBatch.collect(Described(), [("a", ([], None))])


def test_r12_a_raising_lane_raises() -> None:
    """R12: what `get_advance_lane` raises escapes unchanged."""
    with pytest.raises(IndexError):
        EventBatch.collect(Described(), [("a", ())])


@pytest.mark.parametrize(
    ("raws", "sizes"),
    [
        ([b"abc", b""], [3, 0]),
        (["abc", b"de"], [3, 2]),
        ([message("1", b"12345"), message("2", b"")], [8, 3]),
        ([message("1", b"12345"), b"xy", 7], [8, 2, UNKNOWN_SIZE]),
        ([7, {}], None),
    ],
)
def test_sizes_follow_the_raw_events(raws: list[Any], sizes: list[int] | None) -> None:
    """Bytes and str count their length, a Message its fields, anything else a constant."""
    assert EventBatch.collect(Plain(), [(raw, None) for raw in raws]).sizes == sizes


def test_a_producer_may_measure_its_events_itself() -> None:
    """`capabilities.byte_size` gets raw event and payload, and wins."""

    class Measured(Plain):
        capabilities = Capabilities(byte_size=lambda raw, payload: len(raw) + payload)

    assert EventBatch.collect(Measured(), [(b"ab", 10), (b"", 1)]).sizes == [12, 1]


def test_a_message_names_itself() -> None:
    """Without ids of the producer's, a Message's own id is the event's."""
    assert EventBatch.collect(Plain(), [(message("orders/0/7"), None)]).id_at(0) == "orders/0/7"


def test_an_object_with_an_id_is_not_a_message() -> None:
    """Any other raw event has no identity, whatever its `id` means to its author."""

    class Row:
        id = "row"

    assert EventBatch.collect(Plain(), [(Row(), None)]).id_at(0) is None


def test_collecting_columns_asks_nothing() -> None:
    """A batch that is in columns already is passed on as it is."""
    batch = EventBatch([b"a"], [1], lane="p0")
    producer = Described()
    assert EventBatch.collect(producer, batch) is batch
    assert producer.lanes_asked == []


def test_splitting_keeps_every_column_aligned() -> None:
    """`split`, slices and `select` keep raws, payloads, lanes, ids and sizes of an event together."""
    batch = EventBatch([b"a", b"bb", b"ccc"], [1, 2, 3], lanes=["x", "y", "x"], ids=["1", "2", "3"], sizes=[1, 2, 3])
    head, tail = batch.split(1)
    assert (list(head), head.lanes, head.ids, head.sizes) == ([(b"a", 1)], ["x"], ["1"], [1])
    assert (list(tail), tail.lanes, tail.ids, tail.sizes) == ([(b"bb", 2), (b"ccc", 3)], ["y", "x"], ["2", "3"], [2, 3])
    chosen = batch.select([0, 2])
    assert (list(chosen), chosen.lanes, chosen.byte_size) == ([(b"a", 1), (b"ccc", 3)], ["x", "x"], 4)
    assert batch[1] == (b"bb", 2)
    head.raws.clear()
    assert len(batch) == 3


def test_joining_fills_the_columns_that_differ() -> None:
    """Batches join in order; a column that one of them lacks is filled with what its absence means."""
    bare = EventBatch([{}], [1], lane="x")
    full = EventBatch([b"a", b"bb"], [2, 3], lanes=["x", "y"], ids=["2", None], sizes=[1, 2])
    joined = EventBatch.join([bare, full])
    assert list(joined) == [({}, 1), (b"a", 2), (b"bb", 3)]
    assert (joined.lanes, joined.ids, joined.sizes) == (["x", "x", "y"], [None, "2", None], [UNKNOWN_SIZE, 1, 2])
    same = EventBatch.join([bare, bare])
    assert (len(same), same.lane, same.lanes, same.ids, same.sizes) == (2, "x", None, None, None)
    assert len(bare) == 1
    assert EventBatch.join([bare]) is bare


def test_a_batch_does_not_print_its_payloads() -> None:
    """Payloads never reach a log through a repr."""
    assert repr(EventBatch([b"secret"], [1], sizes=[6])) == "EventBatch(1 events, 6 bytes)"
