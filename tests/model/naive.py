"""The rules of resolution and advancing (R3, R6-R12, R15, R17), written down naively: nothing is forgotten or summed up.

Every event keeps its cohort, and for each member of it what became of it. Whatever the engine tells by watermarks, runs and
sparse exceptions is computed here from that, from the beginning, each time somebody asks.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.streams.contract import UNORDERED, AdvanceOutcome, Rejection


class State(enum.Enum):
    """Where a member of its cohort is with an event."""

    UNPULLED = "not pulled yet"
    IN_HAND = "in hand"
    PASSED = "moved past"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(eq=False)
class Share:
    """One member's part in one event."""

    state: State
    writes: set[int] = field(default_factory=set)
    rejection: Rejection | None = None
    pulled_at: float = 0.0
    since: float | None = None
    """The first sweep since it was pulled."""
    bound_at: float = 0.0
    """When it derived the first of what is not stored."""
    passed_at: float = 0.0

    @property
    def is_resolved(self) -> bool:
        return self.state in (State.REJECTED, State.FAILED) or (self.state is State.PASSED and not self.writes)


@dataclass(eq=False)
class Event:
    seq: int
    name: Any
    lane: LaneLife
    size: int
    time: float
    cohort: dict[Member, Share]
    absent: int
    is_stale: bool
    """Of its lane's old run: it was read before the lane started over."""
    is_void: bool = False
    is_told: bool = False
    is_settled: bool = False
    is_lost: bool = False

    @property
    def size_of_cohort(self) -> int:
        return len(self.cohort) + self.absent

    @property
    def is_resolved(self) -> bool:
        return self.is_void or all(share.is_resolved for share in self.cohort.values())

    @property
    def has_failed(self) -> bool:
        """Whether it breaks an ordered lane: failed for somebody, or met nobody."""
        return not self.size_of_cohort or self.absent > 0 or any(share.state is State.FAILED for share in self.cohort.values())

    @property
    def outcome(self) -> AdvanceOutcome:
        if self.is_void:
            return AdvanceOutcome(0, self.size_of_cohort)
        states = [share.state for share in self.cohort.values()]
        rejections = tuple(share.rejection for share in self.cohort.values() if share.rejection is not None)
        return AdvanceOutcome(
            states.count(State.PASSED), states.count(State.FAILED) + self.absent, states.count(State.REJECTED), rejections
        )


@dataclass(eq=False)
class LaneLife:
    """A lane from its first event until it is lost."""

    key: Hashable
    is_ordered: bool
    untold: list[Event] = field(default_factory=list)
    call: list[Event] | None = None
    """What the `advance` call carries that is out, or waits for its retry."""
    breaks: bool = False
    """The call carries the event that broke the lane; nothing read now is of the lane's new run."""
    is_lost: bool = False


@dataclass(eq=False)
class Member:
    id: Hashable
    wants: Callable[[Any], bool] | None = None
    """What an indexed subscriber is offered; None: everything."""
    is_active: bool = True
    has_failed: bool = False
    hand: Event | None = None
    offers_again: bool = False
    attempt: int = 1
    position: int = 0
    """It has moved past every sequence number below."""
    seen: list[Event] = field(default_factory=list)

    @property
    def share(self) -> Share | None:
        return self.hand.cohort[self] if self.hand is not None else None

    @property
    def holds_void(self) -> bool:
        """What it has in hand is resolved already, for it or for all."""
        hand = self.hand
        return hand is not None and (not self.is_active or hand.is_void or hand.cohort[self].state is not State.IN_HAND)

    @property
    def open_hand(self) -> Event | None:
        return None if self.holds_void else self.hand


class Naive:
    """One stream's history."""

    def __init__(self, *, ordered: bool, clock: Callable[[], float]) -> None:
        self.ordered = ordered
        self.clock = clock
        self.events: list[Event] = []
        self.members: list[Member] = []
        self.lanes: dict[Hashable, LaneLife] = {}
        self.all_lanes: list[LaneLife] = []
        self.sizes: dict[int, int] = {}
        """Bytes of each write that is bound and not stored."""
        self.restarted: set[Hashable] = set()
        """Lanes that started over since the batch was read that is being published."""
        self.absences: list[tuple[float, float]] = []
        """From when to when the store was away."""

    # -- who is there

    def join(self, id: Hashable, wants: Callable[[Any], bool] | None = None) -> Member:
        member = Member(id, wants, position=len(self.events))
        self.members.append(member)
        return member

    @property
    def cohort(self) -> list[Member]:
        return [member for member in self.members if member.is_active]

    def leave(self, member: Member, *, abandon: bool = False) -> None:
        if not member.is_active:
            return
        for event, share in self._shares(member):
            if share.state is State.UNPULLED:
                self._fail(event, share)
            elif share.state is State.IN_HAND:
                # what is offered again and not pulled again is left before pulling it
                if abandon or member.offers_again:
                    self._fail(event, share)
                else:
                    self._pass(share)
        member.is_active = False
        self._break_lanes()

    def fail(self, member: Member) -> None:
        """Overflow, or a timeout."""
        member.has_failed = True
        for event, share in self._shares(member):
            if not share.is_resolved:
                self._fail(event, share)
        member.is_active = False
        self._break_lanes()

    def _shares(self, member: Member) -> list[tuple[Event, Share]]:
        """Its part in everything that may still count."""
        return [
            (event, event.cohort[member])
            for lane in self.lanes.values()
            for event in lane.untold
            if member in event.cohort and not event.is_void
        ]

    def _pass(self, share: Share) -> None:
        share.state = State.PASSED
        share.passed_at = self.clock()

    def _fail(self, event: Event, share: Share) -> None:
        share.state = State.FAILED
        self._drop_writes(share)

    def _drop_writes(self, share: Share) -> None:
        for write_id in share.writes:
            del self.sizes[write_id]
        share.writes = set()

    # -- reading

    def read(self) -> None:
        """A new batch comes from the source."""
        self.restarted = set()

    def publish(self, batch: Sequence[tuple[Any, Hashable, int, Any]], *, absent: int = 0) -> list[Event]:
        """`batch`: name, lane, size and raw event of each."""
        published = []
        for name, key, size, raw in batch:
            lane = self._lane(key)
            stale = lane.is_ordered and (lane.breaks or key in self.restarted)
            cohort = {
                member: Share(State.UNPULLED if member.wants is None or member.wants(raw) else State.PASSED)
                for member in self.cohort
            }
            event = Event(len(self.events), name, lane, size, self.clock(), cohort, absent, stale)
            self.events.append(event)
            lane.untold.append(event)
            published.append(event)
            if stale:
                self._make_void(event)
        self._break_lanes()
        return published

    def _lane(self, key: Hashable) -> LaneLife:
        if key not in self.lanes:
            self.lanes[key] = LaneLife(key, self.ordered and key is not UNORDERED)
            self.all_lanes.append(self.lanes[key])
        return self.lanes[key]

    def _break_lanes(self) -> None:
        """R15: in an ordered lane nothing behind a failed event counts."""
        for lane in self.lanes.values():
            if lane.is_ordered:
                is_broken = False
                for event in lane.untold:
                    if is_broken:
                        self._make_void(event)
                    elif not event.is_void:
                        is_broken = event.has_failed

    def _make_void(self, event: Event) -> None:
        if event.is_void:
            return
        event.is_void = True
        for member, share in event.cohort.items():
            self._drop_writes(share)
            if member.hand is event and member.is_active:
                member.position = max(member.position, event.seq + 1)

    def lose(self, key: Hashable) -> LaneLife | None:
        lane = self.lanes.pop(key, None)
        if lane is not None:
            lane.is_lost = True
            for event in lane.untold:
                self._make_void(event)
                event.is_lost = True
            lane.untold = []
        return lane

    # -- subscribers

    def next_of(self, member: Member) -> Event | None:
        """What its next pull gives."""
        if member.offers_again and member.open_hand is not None:
            return member.hand
        return next(iter(self.unpulled(member)), None)

    def unpulled(self, member: Member) -> list[Event]:
        """What it may pull and has not, in fan-out order."""
        return [
            event
            for event in self.events[member.position if member.wants is None else 0 :]
            if not event.is_void and member in event.cohort and event.cohort[member].state is State.UNPULLED
        ]

    def pull(self, member: Member) -> Event | None:
        """Ask for the next event: moves past the one in hand, whether there is another or not."""
        event = self.next_of(member)
        if member.offers_again and event is member.hand and event is not None:
            member.offers_again = False
            return event
        self.move_past(member)
        member.hand = event
        member.attempt = 1
        member.position = len(self.events) if event is None else event.seq
        if event is not None:
            assert event not in member.seen
            member.seen.append(event)
            event.cohort[member].state = State.IN_HAND
            event.cohort[member].pulled_at = self.clock()
        return event

    def move_past(self, member: Member) -> None:
        """Ask for the next event, and take nothing: the pull is cancelled."""
        if (hand := member.hand) is not None:
            if not member.holds_void:
                self._pass(hand.cohort[member])
            member.position = max(member.position, hand.seq + 1)
        member.hand = None
        member.offers_again = False

    def resume(self, member: Member) -> None:
        if (share := member.share) is not None and not member.holds_void:
            self._drop_writes(share)
            if not member.offers_again:
                member.attempt += 1
            member.offers_again = True

    def bind(self, member: Member, write_id: int, size: int) -> bool:
        if (share := member.share) is None or member.holds_void:
            return False
        if not share.writes:
            share.bound_at = self.clock()
        share.writes.add(write_id)
        self.sizes[write_id] = size
        return True

    def reject(self, member: Member, reason: str | None) -> bool:
        hand, share = member.hand, member.share
        if hand is None or share is None or member.holds_void:
            return False
        self._drop_writes(share)
        share.state = State.REJECTED
        share.rejection = Rejection(member.id, reason, member.attempt)
        member.position = hand.seq + 1
        return True

    # -- the store

    def confirm(self, write_ids: Iterable[int]) -> None:
        for write_id in write_ids:
            if (found := self._write(write_id)) is not None:
                found[2].writes.remove(write_id)
                del self.sizes[write_id]

    def refuse(self, write_ids: Iterable[int]) -> None:
        for write_id in write_ids:
            if (found := self._write(write_id)) is not None:
                member, event, share = found
                if member.open_hand is event:
                    member.position = event.seq + 1
                self._fail(event, share)
                self._break_lanes()

    def _write(self, write_id: int) -> tuple[Member, Event, Share] | None:
        if write_id not in self.sizes:
            return None
        return next(
            (member, event, share) for event in self.events for member, share in event.cohort.items() if write_id in share.writes
        )

    # -- the broker

    def next_call(self, lane: LaneLife) -> tuple[list[Event], bool]:
        """What the lane's next `advance` call carries, and whether it breaks the lane. Of `UNORDERED` the order is free."""
        if lane.call is not None:
            return [], False
        if lane.key is UNORDERED:
            return [event for event in lane.untold if event.is_resolved], False
        stale = [event for event in lane.untold if event.is_stale]
        if stale:
            assert lane.untold[: len(stale)] == stale
            return stale, False
        carried: list[Event] = []
        for at, event in enumerate(lane.untold):
            if not event.is_resolved:
                break
            carried.append(event)
            if lane.is_ordered and event.has_failed:
                return carried + lane.untold[at + 1 :], True
        return carried, False

    def call(self, lane: LaneLife, events: Sequence[Event], *, breaks: bool) -> None:
        lane.call = list(events)
        lane.breaks = breaks
        for event in events:
            event.is_told = True
        lane.untold = [event for event in lane.untold if not event.is_told]

    def return_call(self, lane: LaneLife) -> None:
        assert lane.call is not None
        for event in lane.call:
            event.is_settled = True
        lane.call = None
        if lane.breaks and not lane.is_lost:
            self.restarted.add(lane.key)
        lane.breaks = False

    # -- bounds

    @property
    def flying(self) -> list[Event]:
        """In flight: read and not settled."""
        return [event for lane in self.all_lanes for event in [*lane.untold, *(lane.call or ())]]

    @property
    def in_flight_bytes(self) -> int:
        return sum(event.size for event in self.flying) + sum(self.sizes.values())

    @property
    def watermark(self) -> int:
        """Every cursor is past all sequence numbers below it."""
        return min((member.position for member in self.cohort if member.wants is None), default=len(self.events))

    def room(self, batch: Sequence[tuple[Any, Hashable, int, Any]], limit: int) -> tuple[int, set[Member]]:
        """How many events fit before somebody has more than `limit` unpulled; if none does, who has no room."""
        counts = {member: len(self.unpulled(member)) for member in self.cohort}
        for at, (_, _, _, raw) in enumerate(batch):
            full = set()
            for member in counts:
                if member.wants is None or member.wants(raw):
                    counts[member] += 1
                    if counts[member] > limit:
                        full.add(member)
            if full:
                return at, full if not at else set()
        return len(batch), set()

    # -- time

    def store_available(self, available: bool) -> None:
        is_away = bool(self.absences) and self.absences[-1][1] == math.inf
        if available and is_away:
            self.absences[-1] = self.absences[-1][0], self.clock()
        elif not available and not is_away:
            self.absences.append((self.clock(), math.inf))

    def away_since(self, moment: float) -> float:
        now = self.clock()
        return sum(max(0.0, min(until, now) - max(since, moment)) for since, until in self.absences)

    def _untold(self) -> list[Event]:
        return [event for lane in self.lanes.values() for event in lane.untold]

    def note(self) -> None:
        """A sweep sees where everybody is: the clocks of what it has not seen before start."""
        now = self.clock()
        for event in self._untold():
            for share in event.cohort.values():
                if share.since is None and (share.state is State.IN_HAND or share.writes):
                    share.since = now
        for member in self.cohort:
            if (share := member.share) is not None and share.since is None:
                share.since = now

    def overdue(self, member: Member, ack_timeout: float, queue_timeout: float) -> tuple[bool, bool]:
        """Whether a sweep must, and whether it may, find that the subscriber was too slow."""
        now = self.clock()
        must = may = False
        hand, share = member.hand, member.share
        if hand is not None and share is not None and share.since is not None:
            must |= member.open_hand is not None and now - share.since >= ack_timeout
        if unpulled := self.unpulled(member):
            pulled = share.since if share is not None and share.since is not None else unpulled[0].time
            must |= now - max(pulled, unpulled[0].time) >= queue_timeout
        for event in self._untold():
            if member in event.cohort:
                late = self.late(event.cohort[member], ack_timeout)
                must |= late[0]
                may |= late[1]
        return must, must or may

    def late(self, share: Share, ack_timeout: float) -> tuple[bool, bool]:
        """Whether what was derived must, and whether it may, count as not stored in time. The engine stops the clock with the
        store from the first derived event on, the rule when nothing else is waited for."""
        if share.state is not State.PASSED or not share.writes or share.since is None:
            return False, False
        waited = self.clock() - share.since
        return (
            waited - self.away_since(share.bound_at) >= ack_timeout,
            waited - self.away_since(share.passed_at) >= ack_timeout,
        )

    def lapse(self, event: Event, member: Member) -> None:
        """What one who left had derived was not stored in time."""
        self._fail(event, event.cohort[member])
        self._break_lanes()

    def departed_late(self, ack_timeout: float) -> list[tuple[Event, Member, bool]]:
        """What those who left had derived and may be late; whether it must be."""
        return [
            (event, member, must)
            for event in self._untold()
            for member, share in event.cohort.items()
            if not member.is_active
            for must, may in [self.late(share, ack_timeout)]
            if may
        ]


def names(events: Collection[Event]) -> list[Any]:
    return [event.name for event in events]
