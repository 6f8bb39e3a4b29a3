"""Poll batches between the task that polls and whoever pulls them.

Kept by partition, so that what a paused partition or an ended run left here can be dropped; merged into one batch when
pulled, so that the engine wakes its subscribers once for all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace import EventBatch, LaneLost
from headrace_kafka.lanes import Lane, Run
from headrace_kafka.message import KafkaMessage, Records, sizes_of


class Batch(NamedTuple):
    """The records of one poll and one partition. `after` is the position behind them."""

    run: Run
    messages: list[KafkaMessage]
    sizes: list[int]
    after: int


class Buffer:
    """What was read and not yet handed out."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._lost: deque[LaneLost] = deque()
        self.events = 0
        self.bytes = 0

    def put(self, lane: Lane, records: Records, after: int) -> None:
        """Add a poll's records of one lane."""
        messages = [KafkaMessage(record, lane.run) for record in records]
        sizes = sizes_of(messages)
        self._batches.append(Batch(lane.run, messages, sizes, after))
        self.events += len(messages)
        self.bytes += sum(sizes)
        lane.read(after)

    def drop(self, lane: Lane) -> None:
        """Drop what is of this lane."""
        self._batches = deque(batch for batch in self._batches if batch.run.lane is not lane)
        self.events = sum(len(batch.messages) for batch in self._batches)
        self.bytes = sum(sum(batch.sizes) for batch in self._batches)

    def lose(self, lanes: Iterable[Lane]) -> None:
        """These lanes are gone: drop what is of them, and say so before anything else."""
        for lane in lanes:
            self.drop(lane)
            self._lost.append(LaneLost(lane.key))

    def pull_lost(self) -> LaneLost | None:
        """The next lane to report as lost; None for none."""
        return self._lost.popleft() if self._lost else None

    def pull(self) -> EventBatch | None:
        """Hand out everything in one batch; None for nothing."""
        if not self._batches:
            return None
        first = self._batches[0]
        messages, sizes, lanes = first.messages, first.sizes, None
        if any(batch.run.lane is not first.run.lane for batch in self._batches):
            lanes = [batch.run.lane.key for batch in self._batches for _ in batch.messages]
        for batch in self._batches:
            batch.run.lane.hand_out(batch.messages[-1].offset, batch.after)
            if batch is not first:
                messages += batch.messages
                sizes += batch.sizes
        self._batches.clear()
        self.events = self.bytes = 0
        return EventBatch(list(messages), messages, lane=first.run.lane.key, lanes=lanes, sizes=sizes)
