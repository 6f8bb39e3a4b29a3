"""A subscriber's place on its stream: what it has pulled, what it may pull next, what it derived and is not stored yet.

`Cursor` walks every segment in order. `IndexedCursor` is for a subscriber that declared what it needs: it visits only the
events that match, and an event it never sees costs it nothing. Pure state, no waiting: `subscription.py` is the async shell.

The invariant of `Cursor`: while nothing is out of the ordinary its position lives in a list iterator that the subscriber drains
directly, one C call an event. As soon as a pull must be noticed (a void event ahead, somebody stuck in this segment, an event
resolved early) the cursor is made *careful*: the iterator is exhausted, so the next pull comes through `pull`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.streams.batch import event_id
from headrace.streams.contract import EventInHand, Rejection
from headrace.streams.segment import Segment

if TYPE_CHECKING:
    from headrace.streams.ledger import Ledger

NOTHING: Final = object()
"""What `pull` returns when the subscriber has seen everything."""


class Write:
    """One derived event that is bound and not confirmed: the event in flight waits for it."""

    __slots__ = ("away", "cursor", "index", "segment", "since", "size")

    def __init__(self, cursor: AnyCursor, segment: Segment, index: int, size: int, since: float | None, away: float) -> None:
        self.cursor = cursor
        self.segment = segment
        self.index = index
        self.size = size
        self.since = since
        """When the event was pulled, as far as a sweep has seen it."""
        self.away = away
        """The store's total time away at that moment."""


class AnyCursor(ABC):
    """What both kinds share: the event in hand, its attempt, and the writes bound to it."""

    __slots__ = (
        "again", "attempt", "failure", "id", "in_hand", "is_active", "is_void", "iterator", "ledger", "noted", "noted_at", "raw",
        "waiter", "writes",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, id: Hashable) -> None:
        self.ledger = ledger
        self.id = id
        self.iterator: Iterator[Any] = iter(())
        """Raw events that may be taken without a `pull`."""
        self.is_active = True
        """In the cohort: neither failed nor left."""
        self.failure: Exception | None = None
        """Why it failed; raised at each pull from then on."""
        self.in_hand = False
        self.is_void = False
        """The event in hand is resolved for this subscriber already; it is past it, and still sees it."""
        self.raw: Any = None
        """The raw event in hand, where the segment no longer keeps it."""
        self.attempt = 1
        self.again = False
        self.writes: dict[int, Write] = {}
        self.noted: int | None = None
        """The sequence number in hand at the last sweep, and when a sweep first saw it there."""
        self.noted_at = 0.0
        self.waiter: Any = None
        """The shell's own: set while the subscriber waits for an event."""

    @abstractmethod
    def position(self) -> tuple[Segment, int]:
        """The event last pulled."""

    @abstractmethod
    def pull(self) -> Any:
        """Move past the event in hand and take the next: its raw event, or `NOTHING`. Raises the failure of a failed cursor."""

    @abstractmethod
    def pass_early(self) -> None:
        """Move past the event in hand and keep it visible, void."""

    @abstractmethod
    def detach(self) -> list[tuple[Segment, int]]:
        """Leave the cohort, as one who has passed everything; returns the events never pulled."""

    @abstractmethod
    def void_ahead(self) -> int:
        """How many of the events that were never pulled are void."""

    @abstractmethod
    def oldest_unpulled(self) -> Segment | None:
        """The segment of the next event to pull, None if there is none."""

    def be_careful(self) -> None:
        """Let the next pull come through `pull`."""

    def event(self) -> tuple[Segment, int] | None:
        """The event in hand, unless it is resolved already."""
        return self.position() if self.in_hand and not self.is_void else None

    def raw_in_hand(self) -> Any:
        return self.raw

    def hand(self, *, gated: bool) -> EventInHand | None:
        """What the subscriber has in hand, void or not."""
        if not self.in_hand:
            return None
        segment, index = self.position()
        raw = self.raw_in_hand()
        named = None if segment.ids is None else segment.ids[index]
        return EventInHand(
            event_id=event_id(raw) if named is None else named,
            lane=segment.lane_at(index).key,
            delivery_count=getattr(raw, "delivery_count", None),
            raw_event=raw,
            attempt=self.attempt,
            gated=gated,
            void=self.is_void,
        )

    def bind(self, write_id: int, size: int) -> bool:
        """Make the event in hand wait for a write; whether there was anything to bind to."""
        event = self.event()
        if event is None or not self.is_active:
            return False
        segment, index = event
        noted = self.noted == segment.first + index
        self.ledger.add_write(
            write_id, Write(self, segment, index, size, self.noted_at if noted else None, self.ledger.store_away)
        )
        return True

    def reject(self, reason: str | None) -> bool:
        """Refuse the event in hand: it resolves at once, and what was bound to it is forgotten; whether there was one."""
        event = self.event()
        if event is None or not self.is_active:
            return False
        segment, index = event
        self.forget(segment, index)
        segment.reject(index, Rejection(self.id, reason, self.attempt))
        self.pass_early()
        self.ledger.touch(segment, index)
        return True

    def forget(self, segment: Segment, index: int) -> None:
        """Drop the unconfirmed writes of an event."""
        for write_id in [key for key, write in self.writes.items() if write.segment is segment and write.index == index]:
            self.ledger.drop_write(write_id)

    def resume(self) -> None:
        """Offer the event in hand once more; what was bound to it is forgotten. The cursor does not move."""
        if (event := self.event()) is not None:
            self.forget(*event)
            self.attempt += not self.again
            self.again = True


class Cursor(AnyCursor):
    """A subscriber that is offered every event."""

    __slots__ = ("index", "is_careful", "is_through", "segment")

    def __init__(self, ledger: Ledger, id: Hashable, tail: Segment) -> None:
        super().__init__(ledger, id)
        self.segment = tail
        self.index = tail.count - 1
        self.is_careful = True
        self.is_through = True
        """Past the last event of its segment."""

    def position(self) -> tuple[Segment, int]:
        if not self.is_careful:
            self.index = self.segment.count - self.iterator.__length_hint__() - 1  # type: ignore[attr-defined]
        return self.segment, self.index

    def passed(self) -> int:
        """How many events of its segment it has moved past."""
        if self.is_through:
            return self.segment.count
        return self.position()[1] + self.is_void

    def raw_in_hand(self) -> Any:
        segment, index = self.position()
        return self.raw if self.is_void else segment.raws[index]

    def resume(self) -> None:
        self.be_careful()
        super().resume()

    def be_careful(self) -> None:
        if not self.is_careful:
            self.position()
            self.is_careful = True
            self.iterator.__setstate__(self.segment.count)  # type: ignore[attr-defined]
            next(self.iterator, None)  # exhausted, it no longer keeps the events

    def pull(self) -> Any:
        segment = self.segment
        if not self.is_careful:  # so nothing was said of the event in hand, and it was the last of its segment
            self.in_hand = False
            self._go_through(segment, segment.count - 1)
        elif self.in_hand or self.failure is not None:
            return self._pull_carefully()
        following = segment.next
        if following is None:
            return NOTHING
        if following.passed_by is not None or following.void:
            return self._enter(following)
        self.segment = following
        self.is_through = self.is_careful = False
        self.in_hand = True
        self.attempt = 1
        self.iterator = iterator = iter(following.raws)
        return next(iterator)

    def _pull_carefully(self) -> Any:
        if self.failure is not None:
            raise self.failure
        if self.again and not self.is_void:
            self.again = False
            return self.raw_in_hand()
        segment = self.segment
        if not self.is_through:
            index = self._next_offered(segment, self.index + 1)
            if index < segment.count:
                if segment.passed_by is not None:
                    self.ledger.move(segment, self.passed(), index)
                return self._take(segment, index)
            passed = self.passed()
            self.in_hand = False
            self._go_through(segment, passed)
        self.in_hand = self.is_void = self.again = False
        self.raw = None
        return self._enter(segment.next)

    @staticmethod
    def _next_offered(segment: Segment, index: int) -> int:
        """The first event from `index` on that is not void."""
        while index < segment.count and index in segment.void:
            index += 1
        return index

    def _enter(self, segment: Segment | None) -> Any:
        """Take the first event of the next segment that is not void; the cursor is through the one before."""
        while segment is not None:
            self.segment = segment
            self.is_through = False
            index = self._next_offered(segment, 0)
            if index < segment.count:
                if index and segment.passed_by is not None:
                    self.index = -1
                    self.ledger.move(segment, 0, index)
                return self._take(segment, index)
            self._go_through(segment, 0)
            segment = segment.next
        return NOTHING

    def _take(self, segment: Segment, index: int) -> Any:
        self.index = index
        self.in_hand = True
        self.is_void = self.again = False
        self.raw = None
        self.attempt = 1
        self.is_careful = segment.passed_by is not None or bool(segment.void)
        if self.is_careful:
            return segment.raws[index]
        self.iterator = iterator = iter(segment.raws)
        if index:
            iterator.__setstate__(index)  # type: ignore[attr-defined]
        return next(iterator)

    def _go_through(self, segment: Segment, passed: int) -> None:
        self.is_careful = True
        self.index = segment.count - 1
        self.is_through = True
        self.ledger.leave_segment(segment, passed)

    def pass_early(self) -> None:
        segment, index = self.position()
        self.raw = segment.raws[index]
        self.be_careful()
        self.is_void = True
        if index + 1 < segment.count:
            if segment.passed_by is not None:
                self.ledger.move(segment, index, index + 1)
        else:
            self._go_through(segment, index)

    def void_ahead(self) -> int:
        segment: Segment | None
        segment, index = self.position()
        count = 0
        while segment is not None:
            if segment.void:
                count += sum(later > index for later in segment.void)
            segment, index = segment.next, -1
        return count

    def oldest_unpulled(self) -> Segment | None:
        segment: Segment | None
        segment, index = self.position()
        while segment is not None and self._next_offered(segment, index + 1) == segment.count:
            segment, index = segment.next, -1
        return segment

    def detach(self) -> list[tuple[Segment, int]]:
        start, index = self.position()
        passed = self.passed()
        if self.in_hand:
            self.raw = self.raw_in_hand()
        self.be_careful()
        unpulled = [(start, later) for later in range(index + 1, start.count)]
        following = start.next
        while following is not None:
            unpulled.extend((following, later) for later in range(following.count))
            following = following.next
        if not self.is_through:
            self._go_through(start, passed)
        following = start.next
        while following is not None:
            self.ledger.leave_segment(following, 0)
            following = following.next
        self.index = index
        self.is_void = True
        self.segment = _alone(start, index)
        self.index = 0
        return unpulled


def _alone(segment: Segment, index: int) -> Segment:
    """A segment of nothing but one place, for a cursor that left: it must not keep the stream's events alive."""
    place = Segment(raws=[None], payloads=[None], first=segment.first + max(index, 0))
    if index >= 0 and segment.count:
        place.lane = segment.lane_at(index)
        place.ids = [segment.ids[index]] if segment.ids is not None else None
    return place


class IndexedCursor(AnyCursor):
    """A subscriber that is offered only the events that match what it declared; each of them waits for it by a hold."""

    __slots__ = ("place", "queue")

    def __init__(self, ledger: Ledger, id: Hashable) -> None:
        super().__init__(ledger, id)
        self.queue: deque[tuple[Segment, int]] = deque()
        self.place: tuple[Segment, int] | None = None

    def position(self) -> tuple[Segment, int]:
        assert self.place is not None
        return self.place

    def event(self) -> tuple[Segment, int] | None:
        # a lane that broke or was lost makes events void without visiting who holds them
        if self.place is not None and not self.is_void and self.place[1] in self.place[0].void:
            self.is_void = True
        return super().event()

    def hand(self, *, gated: bool) -> EventInHand | None:
        self.event()
        return super().hand(gated=gated)

    def pull(self) -> Any:
        if self.failure is not None:
            raise self.failure
        event = self.event()
        if self.again and event is not None:
            self.again = False
            return self.raw
        if event is not None:
            self.ledger.release(*event)
        self.again = False
        self.in_hand = self.is_void = False
        self.raw = self.place = None
        while self.queue:
            segment, index = self.queue.popleft()
            if index not in segment.void:
                self.place = segment, index
                self.in_hand = True
                self.attempt = 1
                self.raw = segment.raws[index]
                return self.raw
        return NOTHING

    def pass_early(self) -> None:
        segment, index = self.position()
        self.is_void = True
        if index not in segment.void:
            self.ledger.release(segment, index)

    def void_ahead(self) -> int:
        return sum(index in segment.void for segment, index in self.queue)

    def oldest_unpulled(self) -> Segment | None:
        while self.queue and self.queue[0][1] in self.queue[0][0].void:
            self.queue.popleft()
        return self.queue[0][0] if self.queue else None

    def detach(self) -> list[tuple[Segment, int]]:
        if (event := self.event()) is not None:
            self.pass_early()
        unpulled = [(segment, index) for segment, index in self.queue if index not in segment.void]
        self.queue.clear()
        for segment, index in unpulled:
            self.ledger.release(segment, index)
        if self.in_hand:
            segment, index = event or self.position()
            self.place = _alone(segment, index), 0
        self.is_void = True
        return unpulled
