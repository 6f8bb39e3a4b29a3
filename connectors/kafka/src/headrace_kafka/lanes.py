"""The bookkeeping of partitions, without a broker, a clock or a loop: what was handed out, what is settled, what is committed.

A lane is one partition for as long as this consumer has it. Offsets only ever move so:

    committed <= settled <= position <= ahead

`ahead` is the next offset to read from the broker, `position` the next one to hand out, `settled` the one below which
everything is resolved and stored, `committed` what the broker has acknowledged. A lane's
*run* is what was handed out without going back: a failed message ends it, and the next run starts at that message. Whatever
still comes of an ended run is ignored, by the identity of its `Run`. A lane that was taken away is dead for good; the
partition comes back as a new lane.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka import TopicPartition

NEVER: Final = float("inf")


class Run:
    """An uninterrupted handing out of a lane. Messages hold it, so it is small."""

    __slots__ = ("lane", "prefix", "topic")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.topic = lane.key.topic
        self.prefix = f"{lane.name}/"

    @property
    def is_current(self) -> bool:
        return self.lane.is_alive and self.lane.run is self


class Lane:
    """One partition while it is ours."""

    __slots__ = (
        "ahead",
        "committed",
        "delivered",
        "failures",
        "is_alive",
        "is_broken",
        "is_paused",
        "key",
        "last",
        "position",
        "rests_until",
        "run",
        "settled",
    )

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.is_alive = True
        self.is_paused = False
        """The engine wants no more of it for now."""
        self.is_broken = False
        """A message of the run failed: nothing more is handed out until the lane starts again from it."""
        self.rests_until = 0.0
        self.failures = 0
        """How often in a row the lane started again without settling anything."""
        self.ahead = 0
        self.position: int | None = None
        """None until it is known where the partition starts."""
        self.last: int | None = None
        """The last offset handed out in this run."""
        self.delivered = 0
        """How often the partition gave anything, whatever became of it."""
        self.settled = 0
        self.committed: int | None = None
        self.run = Run(self)

    @property
    def name(self) -> str:
        """`topic/partition`."""
        return f"{self.key.topic}/{self.key.partition}"

    def place(self, position: int, committed: int | None) -> None:
        """Start at this offset; `committed` is what the broker has for the group, None for nothing."""
        self.position = self.ahead = self.settled = position
        self.committed = committed
        self.last = None

    def is_open(self, now: float) -> bool:
        """Whether the partition may be read."""
        return self.position is not None and not self.is_paused and not self.is_broken and self.rests_until <= now

    def read(self, ahead: int) -> None:
        """Note what was read from the broker, and waits to be handed out: everything below `ahead`."""
        self.ahead = ahead
        self.delivered += 1

    def unread(self) -> None:
        """What waits to be handed out was dropped: it will be read again."""
        assert self.position is not None
        self.ahead = self.position

    def hand_out(self, last: int, position: int) -> None:
        """Note that everything up to `last` was handed out, and that `position` is the next.

        It is `last + 1`, or more where the offsets between belong to no record (compaction, transaction markers).
        """
        self.last = last
        self.position = position

    def skip_to(self, ahead: int) -> None:
        """Note that there are no records below `ahead`, if everything before is handed out and settled."""
        if self.is_quiet and self.ahead == self.position and ahead > self.ahead:
            self.position = self.ahead = self.settled = ahead
            self.delivered += 1

    def settle(self, offset: int) -> int:
        """Note that the message at this offset and all before it are settled; returns the position that says so."""
        after = offset + 1
        if offset == self.last:  # all that was handed out
            assert self.position is not None
            after = self.position
        if after > self.settled:
            self.settled = after
            self.failures = 0
        return after

    def break_off(self) -> None:
        """A message failed: hand out no more of this run."""
        self.is_broken = True

    def start_again(self, offset: int, *, rests_until: float) -> None:
        """Begin a new run at a failed message."""
        assert self.settled <= offset
        self.position = self.ahead = offset
        self.last = None
        self.run = Run(self)
        self.is_broken = False
        self.failures += 1
        self.rests_until = rests_until

    @property
    def is_quiet(self) -> bool:
        """Whether nothing that this run handed out is unsettled."""
        return self.position is not None and (self.last is None or self.settled == self.position)

    @property
    def is_committed(self) -> bool:
        return self.committed is not None and self.committed >= self.settled


@dataclass(frozen=True, slots=True)
class Change:
    """What an assignment did to the lanes."""

    lost: tuple[Lane, ...]
    kept: tuple[Lane, ...]
    new: tuple[Lane, ...]


@dataclass(slots=True)
class Lanes:
    """All lanes of this consumer, by partition."""

    acknowledging: bool = False
    """Whether outcomes ever came. Before, and in unacknowledged mode, no position is committed that nobody settled."""
    _lanes: dict[TopicPartition, Lane] = field(default_factory=dict)

    def assign(self, partitions: Collection[TopicPartition], *, unbroken: bool) -> Change:
        """Take a new assignment. `unbroken`: this consumer was a member in between, so that nobody else can have had what it
        had and has; else everything starts anew."""
        kept = {key: lane for key, lane in self._lanes.items() if unbroken and key in partitions}
        lost = tuple(lane for key, lane in self._lanes.items() if key not in kept)
        new = {key: Lane(key) for key in sorted(partitions) if key not in kept}
        for lane in lost:
            lane.is_alive = False
        self._lanes = {**kept, **new}  # in one step: other threads may be reading
        return Change(lost, tuple(kept.values()), tuple(new.values()))

    def replace(self, lane: Lane) -> Lane:
        """End a lane whose positions mean nothing any more; returns the new one of the same partition."""
        lane.is_alive = False
        self._lanes[lane.key] = new = Lane(lane.key)
        return new

    def get(self, key: TopicPartition) -> Lane | None:
        return self._lanes.get(key)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def closed_until(self, now: float) -> float:
        """When the next resting lane may be read again; `NEVER` where none rests."""
        return min((lane.rests_until for lane in self if lane.rests_until > now), default=NEVER)

    def uncommitted(self, *, again: bool = False) -> dict[TopicPartition, int]:
        """The positions to commit, none lower than what the broker has; `again`: also those it has.

        A partition without a commit gets its first one once outcomes come at all, be it for another partition: with
        `auto_offset_reset: latest` a restart would else skip what came meanwhile.
        """
        return {
            lane.key: lane.settled
            for lane in self
            if lane.position is not None
            and ((self.acknowledging and not lane.is_committed) or (again and (self.acknowledging or lane.committed is not None)))
        }

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note what the broker has acknowledged. Replies may come in any order."""
        for key, offset in offsets.items():
            lane = self._lanes.get(key)
            if lane is not None and (lane.committed is None or lane.committed < offset):
                lane.committed = offset

    @property
    def are_settled(self) -> bool:
        """Whether no outcome is being waited for, and what is settled is committed."""
        if not self.acknowledging:
            return True
        return all(lane.position is None or lane.is_broken or (lane.is_quiet and lane.is_committed) for lane in self)
