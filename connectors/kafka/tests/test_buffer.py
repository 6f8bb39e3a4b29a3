"""What waits between a poll and whoever pulls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from headrace_kafka.buffer import Buffer
from headrace_kafka.lanes import Lane

from headrace import EventBatch, LaneLost


def placed(number: int) -> Lane:
    lane = Lane(TopicPartition("t", number))
    lane.place(0, None)
    return lane


def records(*offsets: int, value: bytes = b"12345") -> list[Any]:
    headers = (("h", b"1"), ("n", None))
    return [
        SimpleNamespace(value=value, key=None, headers=headers if offset % 2 else (), timestamp=1000 + offset, offset=offset)
        for offset in offsets
    ]


def test_everything_is_pulled_in_one_batch() -> None:
    """Several polls of several partitions are one batch, each event with its lane, size and identity; then there is nothing."""
    buffer, zero, one = Buffer(), placed(0), placed(1)
    buffer.put(zero, records(0, 1), 2)
    buffer.put(one, records(7), 9)
    buffer.put(zero, records(2), 3)
    assert (buffer.events, buffer.bytes) == (4, 5 + 8 + 8 + 5)
    assert (zero.ahead, zero.position) == (3, 0)
    batch = buffer.pull()
    assert isinstance(batch, EventBatch)
    assert [raw.id for raw in batch.raws] == ["t/0/0/1000", "t/0/1/1001", "t/1/7/1007", "t/0/2/1002"]
    assert batch.payloads == batch.raws
    assert batch.lanes == [zero.key, zero.key, one.key, zero.key]
    assert batch.sizes == [raw.byte_size for raw in batch.raws] == [5, 8, 8, 5]
    assert (zero.position, zero.last, one.position, one.last) == (3, 2, 9, 7)
    assert (buffer.events, buffer.bytes, buffer.pull()) == (0, 0, None)


def test_one_partition_needs_no_column_of_lanes() -> None:
    """A batch of one lane names it once."""
    buffer, zero = Buffer(), placed(0)
    buffer.put(zero, records(0), 1)
    buffer.put(zero, records(1), 2)
    batch = buffer.pull()
    assert batch is not None
    assert (batch.lane, batch.lanes, len(batch)) == (zero.key, None, 2)


def test_what_is_left_of_a_lost_lane_is_dropped() -> None:
    """A lost lane is told before anything else, and nothing of it is handed out; the others wait on."""
    buffer, zero, one = Buffer(), placed(0), placed(1)
    buffer.put(zero, records(0, 1), 2)
    buffer.put(one, records(0), 1)
    buffer.lose([zero])
    assert buffer.pull_lost() == LaneLost(zero.key)
    assert buffer.pull_lost() is None
    assert (buffer.events, buffer.bytes) == (1, 5)
    batch = buffer.pull()
    assert batch is not None
    assert batch.lane == one.key


def test_dropping_a_lane_hands_nothing_of_it_out() -> None:
    """What is dropped was not handed out: the lane's position stays."""
    buffer, zero = Buffer(), placed(0)
    buffer.put(zero, records(0, 1), 2)
    buffer.drop(zero)
    assert (buffer.pull(), zero.position, zero.ahead) == (None, 0, 2)


def test_messages() -> None:
    """A message tells its time in seconds and its place, and no payload in its repr."""
    buffer, zero = Buffer(), placed(0)
    buffer.put(zero, records(3, value=b'{"secret": 1}'), 4)
    batch = buffer.pull()
    assert batch is not None
    message = batch.raws[0]
    assert (message.timestamp, message.source, message.partition, message.delivery_count) == (1.003, "t", 0, None)
    assert message.json() is message.json()
    assert "secret" not in repr(message)
