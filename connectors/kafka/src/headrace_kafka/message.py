"""A Kafka record as Headrace's `Message`, built fast: this is the one step that every record pays in Python.

What few events need (the identity, the time in seconds) is computed when it is asked for. The message is its own broker
payload: it knows its offset, the run of the lane it was handed out in, and the bytes that a dead letter repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from aiokafka.structs import ConsumerRecord

from headrace import Message

if TYPE_CHECKING:
    from headrace_kafka.lanes import Run

Records: TypeAlias = Sequence["ConsumerRecord[bytes | None, bytes | None]"]


class KafkaMessage(Message):
    """One record. `offset` is its place in the partition; `run` is the life of the lane it belongs to."""

    __slots__ = ("offset", "run", "timestamp_ms")

    offset: int
    timestamp_ms: int  # of the record, -1 where it has none

    delivery_count = None  # Kafka does not count

    def __init__(self, record: ConsumerRecord[bytes | None, bytes | None], run: Run) -> None:
        # Instead of Message.__init__: no keywords, and nothing that can wait.
        self.value = record.value
        self.key = record.key
        self.headers = record.headers
        self.source = run.topic
        self.timestamp_ms = record.timestamp
        self.offset = record.offset
        self.run = run

    @property
    def id(self) -> str:  # type: ignore[override]
        """`topic/partition/offset/timestamp in ms`: a topic that is made anew starts at offset 0 again, but not in time."""
        return f"{self.run.prefix}{self.offset}/{self.timestamp_ms}"

    @property
    def timestamp(self) -> float:  # type: ignore[override]
        return self.timestamp_ms / 1000

    @property
    def partition(self) -> int:
        partition: int = self.run.lane.key.partition
        return partition


def sizes_of(messages: list[KafkaMessage]) -> list[int]:
    """The `byte_size` of each, without a call for each."""
    return [
        (0 if message.value is None else len(message.value)) + (0 if message.key is None else len(message.key))
        if not message.headers
        else message.byte_size
        for message in messages
    ]
