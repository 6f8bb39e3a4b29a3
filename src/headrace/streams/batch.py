"""A poll batch in columns: what the engine needs to know of each event, asked of the producer once, as the event is read.

`EventBatch.collect` turns the pairs a producer yields into raws, payloads, lanes, ids and sizes. A column that would say the
same of every event is None, so that a batch of one lane without ids costs two lists. A producer that is hosted in another
thread collects there and yields ready batches; any other producer's pairs are collected by the stream's reader.
`AdvanceBatch` is the way back: what became of the events, in columns too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, overload

from headrace.streams.contract import AdvanceItem, AdvanceOutcome, SharedStreamProducer

UNKNOWN_SIZE: Final = 1024
"""Bytes that an event counts for when nothing tells its size."""


class AdvanceBatch(Sequence[AdvanceItem]):
    """The items of one `advance` call, in columns: an `AdvanceItem` is built when somebody looks at it.

    `is_stale`: all are of an ordered lane's run that an earlier call broke off, and came when that call was out already.
    """

    __slots__ = ("is_stale", "outcomes", "payloads")

    def __init__(self, payloads: list[Any], outcomes: list[AdvanceOutcome], *, is_stale: bool = False) -> None:
        self.payloads = payloads
        self.outcomes = outcomes
        self.is_stale = is_stale

    @classmethod
    def of(cls, items: Sequence[AdvanceItem]) -> AdvanceBatch:
        """The same items in columns."""
        if isinstance(items, AdvanceBatch):
            return items
        return cls([item.broker_payload for item in items], [item.outcome for item in items])

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[AdvanceItem]:
        return map(AdvanceItem, self.payloads, self.outcomes)

    @overload
    def __getitem__(self, index: int) -> AdvanceItem: ...
    @overload
    def __getitem__(self, index: slice) -> AdvanceBatch: ...
    def __getitem__(self, index: int | slice) -> AdvanceItem | AdvanceBatch:
        if isinstance(index, slice):
            return AdvanceBatch(self.payloads[index], self.outcomes[index], is_stale=self.is_stale)
        return AdvanceItem(self.payloads[index], self.outcomes[index])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a list, in effect

    def __repr__(self) -> str:
        return f"AdvanceBatch({len(self)} items)"  # never the payloads


class EventBatch(Sequence[tuple[Any, Any]]):
    """Events of one poll, in fan-out order: a sequence of `(raw event, broker payload)`, kept in columns.

    The columns are lists of equal length that belong to whoever holds the batch; slices have lists of their own.
    """

    __slots__ = ("ids", "lane", "lanes", "payloads", "raws", "sizes")

    raws: list[Any]
    payloads: list[Any]
    lanes: list[Hashable] | None
    """A lane for each event; None: all are of `lane`."""
    lane: Hashable
    ids: list[str | None] | None
    """What the producer's `get_event_id` says; None: it says nothing (see `event_id`)."""
    sizes: list[int] | None
    """Bytes of each event; None: `UNKNOWN_SIZE` each."""

    def __init__(
        self,
        raws: list[Any],
        payloads: list[Any],
        *,
        lane: Hashable = None,
        lanes: list[Hashable] | None = None,
        ids: list[str | None] | None = None,
        sizes: list[int] | None = None,
    ) -> None:
        self.raws = raws
        self.payloads = payloads
        self.lane = lane
        self.lanes = lanes
        self.ids = ids
        self.sizes = sizes

    @classmethod
    def collect(cls, producer: SharedStreamProducer, pairs: Sequence[tuple[Any, Any]]) -> EventBatch:
        """Ask the producer for each event's lane, id and size, once. A batch that is in columns already is returned as it is.

        Raises what `get_advance_lane`, `get_event_id` and `byte_size` raise, and `TypeError` for a lane that cannot be hashed.
        """
        if type(pairs) is cls:  # `isinstance` costs more: a Sequence is abstract
            return pairs
        kind = type(producer)
        if len(pairs) == 1:  # what `open_stream` gives
            raw, payload = pairs[0]
            batch = cls([raw], [payload])
        else:
            raws, payloads = zip(*pairs, strict=True)
            batch = cls(list(raws), list(payloads))
        if kind.get_advance_lane is not SharedStreamProducer.get_advance_lane:
            batch._set_lanes(list(map(producer.get_advance_lane, batch.payloads)))
        if kind.get_event_id is not SharedStreamProducer.get_event_id:
            batch.ids = list(map(producer.get_event_id, batch.payloads))
        measure = producer.capabilities.byte_size
        batch.sizes = _sizes(batch.raws) if measure is None else list(map(measure, batch.raws, batch.payloads))
        return batch

    def _set_lanes(self, lanes: list[Hashable]) -> None:
        try:
            several = len(set(lanes)) > 1  # hashes every lane
        except TypeError as error:
            raise TypeError(f"get_advance_lane must return something hashable: {error}") from error
        if several:
            self.lanes = lanes
        elif lanes:
            self.lane = lanes[0]

    def lane_at(self, index: int) -> Hashable:
        """The lane of one event."""
        return self.lane if self.lanes is None else self.lanes[index]

    def id_at(self, index: int) -> str | None:
        """The identity of one event, None where the source gives none."""
        named = None if self.ids is None else self.ids[index]
        return event_id(self.raws[index]) if named is None else named

    @property
    def byte_size(self) -> int:
        """Bytes of all events."""
        return UNKNOWN_SIZE * len(self.raws) if self.sizes is None else sum(self.sizes)

    def split(self, count: int) -> tuple[EventBatch, EventBatch]:
        """The first `count` events, and the others."""
        return self[:count], self[count:]

    def select(self, indexes: Sequence[int]) -> EventBatch:
        """The events at these indexes, in the order of the indexes."""
        return EventBatch(
            [self.raws[i] for i in indexes],
            [self.payloads[i] for i in indexes],
            lane=self.lane,
            lanes=None if self.lanes is None else [self.lanes[i] for i in indexes],
            ids=None if self.ids is None else [self.ids[i] for i in indexes],
            sizes=None if self.sizes is None else [self.sizes[i] for i in indexes],
        )

    @classmethod
    def join(cls, batches: Sequence[EventBatch]) -> EventBatch:
        """One batch of several (at least one), in their order."""
        if len(batches) == 1:
            return batches[0]
        joined = cls([], [])
        for batch in batches:
            joined.raws += batch.raws
            joined.payloads += batch.payloads
        if any(batch.lanes is not None or batch.lane != batches[0].lane for batch in batches):
            joined.lanes = [lane for batch in batches for lane in batch.lanes or [batch.lane] * len(batch)]
        else:
            joined.lane = batches[0].lane
        if any(batch.ids is not None for batch in batches):
            joined.ids = [name for batch in batches for name in batch.ids or [None] * len(batch)]
        if any(batch.sizes is not None for batch in batches):
            joined.sizes = [size for batch in batches for size in batch.sizes or [UNKNOWN_SIZE] * len(batch)]
        return joined

    def __len__(self) -> int:
        return len(self.raws)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.raws, self.payloads, strict=True)

    @overload
    def __getitem__(self, index: int) -> tuple[Any, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> EventBatch: ...
    def __getitem__(self, index: int | slice) -> tuple[Any, Any] | EventBatch:
        if not isinstance(index, slice):
            return self.raws[index], self.payloads[index]
        return EventBatch(
            self.raws[index],
            self.payloads[index],
            lane=self.lane,
            lanes=None if self.lanes is None else self.lanes[index],
            ids=None if self.ids is None else self.ids[index],
            sizes=None if self.sizes is None else self.sizes[index],
        )

    def __repr__(self) -> str:
        return f"EventBatch({len(self.raws)} events, {self.byte_size} bytes)"  # never the payloads


def event_id(raw: Any) -> str | None:
    """The identity a raw event has by itself: a `Message`'s `id`.

    This package knows no `Message`; whatever tells its `byte_size` as one does is taken for one.
    """
    return raw.id if hasattr(raw, "byte_size") and hasattr(raw, "id") else None


def _sizes(raws: list[Any]) -> list[int] | None:
    if len(raws) == 1:
        size = _size(raws[0])
        return None if size == UNKNOWN_SIZE else [size]
    kinds = set(map(type, raws))
    if kinds <= {bytes, str}:
        return list(map(len, raws))
    if not any(kind in (bytes, str) or hasattr(kind, "byte_size") for kind in kinds):
        return None
    if len(kinds) == 1:
        return [raw.byte_size for raw in raws]
    return [_size(raw) for raw in raws]


def _size(raw: Any) -> int:
    if isinstance(raw, (bytes, str)):
        return len(raw)
    size = getattr(raw, "byte_size", UNKNOWN_SIZE)
    return size if isinstance(size, int) else UNKNOWN_SIZE
