"""One poll batch in flight, and the lanes its events settle on: plain state, driven by `ledger.py`.

A segment keeps its events in columns, so that an event in flight costs a few list slots and nothing per subscriber. What is
ordinary is not written down; only exceptions are, in sparse dicts by index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Final

from headrace.streams.batch import UNKNOWN_SIZE, AdvanceBatch
from headrace.streams.contract import UNORDERED, AdvanceOutcome, Rejection

_NO_COUNTS: Final[Mapping[int, int]] = {}
_NO_REJECTIONS: Final[Mapping[int, list[Rejection]]] = {}
_NO_INDICES: Final[AbstractSet[int]] = frozenset()


@lru_cache(maxsize=256)
def _clean(size: int) -> AdvanceOutcome:
    return AdvanceOutcome(size, 0)


class Segment:
    """A batch of events that went to one cohort at one moment; `first` is the sequence number of its event 0.

    `remaining` counts the cursors that are not through it. `passed_by`, present only while somebody is stuck in the oldest
    segment, counts the cursors at each number of events passed, and `low` is the least of these.
    """

    __slots__ = (
        "absent", "count", "failed", "first", "held", "ids", "lane", "lanes", "low", "next", "passed_by", "payloads", "raws",
        "rejected", "remaining", "size", "sizes", "time", "void",
    )  # fmt: skip

    def __init__(
        self,
        *,
        raws: list[Any],
        payloads: list[Any],
        ids: list[str | None] | None = None,
        sizes: list[int] | None = None,
        first: int = 0,
        size: int = 0,
        absent: int = 0,
        remaining: int = 0,
        time: float = 0.0,
    ) -> None:
        self.raws = raws
        self.payloads = payloads
        self.ids = ids
        self.sizes = sizes
        self.first = first
        self.count = len(raws)
        self.size = size
        self.absent = absent
        self.remaining = remaining
        self.time = time
        self.next: Segment | None = None
        self.lane: Lane | None = None
        self.lanes: list[Lane] | None = None
        self.passed_by: list[int] | None = None
        self.low = 0
        self.held = _NO_COUNTS
        self.failed = _NO_COUNTS
        self.rejected = _NO_REJECTIONS
        self.void = _NO_INDICES

    def lane_at(self, index: int) -> Lane:
        """The lane of an event."""
        lane = self.lane if self.lanes is None else self.lanes[index]
        assert lane is not None
        return lane

    def lanes_of(self, start: int, stop: int) -> Sequence[Lane]:
        """The lanes of the events `start` to `stop`, repeats possible."""
        if self.lanes is not None:
            return self.lanes[start:stop]
        return (self.lane,) if self.lane is not None and start < stop else ()

    def bytes_of(self, indices: Sequence[int]) -> int:
        """Bytes of these events."""
        sizes = self.sizes
        if sizes is None:
            return UNKNOWN_SIZE * len(indices)
        if isinstance(indices, range):
            return sum(sizes[indices.start : indices.stop])
        return sum(map(sizes.__getitem__, indices))

    def hold(self, index: int) -> None:
        """Count one more thing that the event waits for."""
        if self.held is _NO_COUNTS:
            self.held = {}
        self.held[index] = self.held.get(index, 0) + 1  # type: ignore[index]

    def release(self, index: int) -> bool:
        """Count one thing less; whether it was the last."""
        left = self.held[index] - 1
        if left:
            self.held[index] = left  # type: ignore[index]
        else:
            del self.held[index]  # type: ignore[attr-defined]
        return not left

    def fail(self, index: int) -> None:
        if self.failed is _NO_COUNTS:
            self.failed = {}
        self.failed[index] = self.failed.get(index, 0) + 1  # type: ignore[index]

    def reject(self, index: int, rejection: Rejection) -> None:
        if self.rejected is _NO_REJECTIONS:
            self.rejected = {}
        self.rejected.setdefault(index, []).append(rejection)  # type: ignore[attr-defined]

    def make_void(self, index: int) -> None:
        """Whatever was said of the event no longer counts."""
        if not self.void:
            self.void = set()
        self.void.add(index)  # type: ignore[attr-defined]
        if index in self.held:
            del self.held[index]  # type: ignore[attr-defined]

    def outcome(self, index: int) -> AdvanceOutcome:
        """How the cohort resolved the event; a void one failed for everybody."""
        if index in self.void:
            return AdvanceOutcome(0, self.size)
        failed = self.absent + self.failed.get(index, 0)
        rejections = tuple(self.rejected.get(index, ()))
        return AdvanceOutcome(self.size - failed - len(rejections), failed, len(rejections), rejections)

    def take(self, indices: Sequence[int], harvest: Harvest) -> None:
        """Put the settlements of these events into the harvest, in order; frees their raw events and payloads."""
        raws, payloads = self.raws, self.payloads
        if isinstance(indices, range):
            taken = slice(indices.start, indices.stop)
            harvest.items.payloads += payloads[taken]
            payloads[taken] = raws[taken] = [None] * len(indices)
        else:
            harvest.items.payloads += [payloads[index] for index in indices]
            for index in indices:
                payloads[index] = raws[index] = None
        harvest.bytes += self.bytes_of(indices)
        harvest.items.outcomes += self._outcomes(indices)

    def take_all(self, harvest: Harvest) -> None:
        """As `take`, for a segment that everybody is through."""
        indices = range(self.count)
        harvest.bytes += self.bytes_of(indices)
        harvest.items.payloads += self.payloads
        harvest.items.outcomes += self._outcomes(indices)
        self.raws = self.payloads = []
        self.sizes = None

    def _outcomes(self, indices: Sequence[int]) -> Iterable[AdvanceOutcome]:
        if self.absent or self.failed or self.rejected or self.void:
            return map(self.outcome, indices)
        return [_clean(self.size)] * len(indices)


class Run:
    """The events of one lane in one segment, from `start` on not yet harvested; `indices` are in fan-out order."""

    __slots__ = ("indices", "segment", "start")

    def __init__(self, segment: Segment, indices: Sequence[int]) -> None:
        self.segment = segment
        self.indices = indices
        self.start = 0

    def left(self) -> Sequence[int]:
        return self.indices[self.start :]

    def resolved(self, watermark: int) -> int:
        """How many of the events that are left everybody is past, and nothing holds, in a row."""
        segment, left = self.segment, self.left()
        held = segment.held
        passed = watermark - segment.first
        if passed < segment.count:
            left = left[: bisect_left(left, passed)]
        if not held or not left:
            return len(left)
        if left[0] in held:
            return 0
        if len(held) < len(left) and isinstance(left, range):
            return min((index for index in held if index in left), default=left.stop) - left.start
        return next((count for count, index in enumerate(left) if index in held), len(left))


class Lane:
    """One life of a lane: what is read and not settled, in fan-out order.

    A lane that is lost and comes back is another `Lane`. In an ordered lane `broken` is the sequence number of the first failed
    event: what is behind it is void; `restarting` lasts while the `advance` that carries the failed event is out.
    """

    __slots__ = (
        "broken", "bytes", "events", "is_busy", "is_lost", "is_ordered", "key", "ready", "restarting", "retry", "runs",
        "stragglers",
    )  # fmt: skip

    def __init__(self, key: Hashable, *, ordered: bool) -> None:
        self.key = key
        self.is_ordered = ordered and key is not UNORDERED
        self.runs: deque[Run] = deque()
        self.events = 0
        self.bytes = 0
        self.broken: int | None = None
        self.restarting = False
        self.is_lost = False
        self.is_busy = False
        self.retry: Harvest | None = None
        self.stragglers: set[tuple[Segment, int]] = set()
        self.ready: list[tuple[Segment, int]] = []


class Harvest:
    """The resolved events of one `advance` call. `breaks`: it carries the failed event that broke its ordered lane."""

    __slots__ = ("attempts", "breaks", "bytes", "items", "lane")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.items = AdvanceBatch([], [])
        self.bytes = 0
        self.breaks = False
        self.attempts = 0

    @property
    def stale(self) -> bool:
        """Whether its events are of the lane's run before a break: see `AdvanceBatch`."""
        return self.items.is_stale

    @stale.setter
    def stale(self, stale: bool) -> None:
        self.items.is_stale = stale
