"""A Hypothesis state machine that drives the pure bookkeeping as a stream does, and a naive model beside it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import AckTimeout, StreamError, SubscriberOverflow
from headrace.streams.batch import UNKNOWN_SIZE, EventBatch
from headrace.streams.contract import UNORDERED
from headrace.streams.cursor import NOTHING, AnyCursor
from headrace.streams.ledger import IDLE_LANES, Ledger
from headrace.streams.segment import Harvest, Lane, Segment
from tests.model.naive import LaneLife, Member, Naive, State, names

LANES: list[Hashable] = ["x", "y", UNORDERED]
KINDS = [0, 1, 2]
WANTS = st.sampled_from([None, None, {0}, {0, 1}, {2}, set()])
PICK = st.integers(0, 4)
ACTS = st.lists(
    st.sampled_from(
        ["pull"] * 6 + ["drain", "drain", "bind", "bind", "bind, confirm", "bind, refuse", "reject", "reject", "resume", "wait"]
    ),
    min_size=1,
    max_size=6,
)
ACK_TIMEOUT = 6.0
QUEUE_TIMEOUT = 5.0
MAX_CALLS = 2


class Raw(dict[str, Any]):
    """A raw event: a mapping, so that it can be matched, and watched for being freed."""

    __slots__ = ("__weakref__",)


class Payload:
    def __init__(self, name: int) -> None:
        self.name = name


class Subscriber:
    """Pulls from a cursor as a subscription does."""

    def __init__(self, cursor: AnyCursor, member: Member) -> None:
        self.cursor = cursor
        self.member = member
        self.iterator: Iterator[Any] = iter(())

    def pull(self, ledger: Ledger) -> Any:
        for raw in self.iterator:
            return raw
        raw = self.cursor.pull()
        if ledger.full:
            ledger.made_room(self.cursor)
        if raw is not NOTHING:
            self.iterator = self.cursor.iterator
        return raw


class Call:
    """An `advance` call, as the pump keeps it."""

    def __init__(self, harvest: Harvest, life: LaneLife) -> None:
        self.harvest = harvest
        self.life = life
        self.waits = False
        """It has failed and waits to be tried again."""


class LedgerMachine(RuleBasedStateMachine):
    """Rules are what a stream may do with its ledger; what `holds` after each is the design's rules."""

    @initialize(ordered=st.booleans(), limit=st.integers(1, 6), wants=st.lists(WANTS, min_size=1, max_size=3))
    def start(self, ordered: bool, limit: int, wants: list[set[int] | None]) -> None:
        self.ledger = Ledger(on_news=self.on_news)
        self.ledger.set_ordered(ordered)
        self.naive = Naive(ordered=ordered, clock=lambda: self.now)
        self.limit = limit
        self.now = 0.0
        self.is_away = False
        self.subscribers: list[Subscriber] = []
        self.departed: dict[AnyCursor, Member] = {}
        self.lives: dict[Lane, LaneLife] = {}
        self.calls: list[Call] = []
        self.write_ids: list[int] = []
        self.rest: list[tuple[int, Hashable, int, int]] = []
        self.is_watched = True
        self.watermark = 0
        self.names = 0
        self.raws: dict[int, weakref.ref[Raw]] = {}
        self.payloads: dict[int, weakref.ref[Payload]] = {}
        self.has_news = False
        self.bounds = (0, 0)
        self.steps = 0
        for wanted in wants:
            self.join(wanted)

    def on_news(self) -> None:
        self.has_news = True

    # -- the cohort

    @rule(what=st.sampled_from(["join", "join", "leave", "abandon", "fail"]), pick=PICK, wants=WANTS)
    def membership(self, what: str, pick: int, wants: set[int] | None) -> None:
        if what == "join":
            if len(self.subscribers) < 5:
                self.join(wants)
        elif self.subscribers:
            subscriber = self.subscribers[pick % len(self.subscribers)]
            if what == "fail":
                self._fail(subscriber, SubscriberOverflow("too slow"))
            else:
                self._leave(subscriber, abandon=what == "abandon")

    def join(self, wants: set[int] | None) -> None:
        name = f"s{len(self.naive.members)}"
        cursor = self.ledger.join(name, None if wants is None else {"kind": wants})
        member = self.naive.join(name, None if wants is None else lambda raw: raw["kind"] in wants)
        self.subscribers.append(Subscriber(cursor, member))

    def _leave(self, subscriber: Subscriber, *, abandon: bool) -> None:
        self.subscribers.remove(subscriber)
        self.ledger.leave(subscriber.cursor, abandon=abandon)
        self.naive.leave(subscriber.member, abandon=abandon)
        if subscriber.cursor in self.ledger._departed:
            self.departed[subscriber.cursor] = subscriber.member

    def _fail(self, subscriber: Subscriber, error: Exception) -> None:
        self.ledger.fail(subscriber.cursor, error)
        if subscriber.member.is_active:
            self.naive.fail(subscriber.member)

    # -- reading

    @rule(
        events=st.lists(st.tuples(st.sampled_from(LANES), st.sampled_from(KINDS), st.integers(1, 9)), min_size=1, max_size=6),
        absent=st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1]),
        has_sizes=st.booleans(),
        drains=st.lists(st.tuples(PICK, st.integers(1, 9)), max_size=3),
        turns=st.sampled_from([True, True, True, False]),
    )
    def read(
        self,
        events: list[tuple[Hashable, int, int]],
        absent: int,
        has_sizes: bool,
        drains: list[tuple[int, int]],
        turns: bool,
    ) -> None:
        """A batch comes from the source, or there is still some left of one: as much of it is published as fits, and some
        subscribers drain it in the turn of the loop that follows."""
        if not self.is_watched:
            self._watch()
        if not self.rest:
            self.ledger.restarted.clear()
            self.naive.read()
            for lane, kind, size in events:
                self.rest.append((self.names, lane, kind, size))
                self.names += 1
        self._publish(absent, has_sizes)
        for pick, count in drains:
            if self.subscribers:
                self._pull(self.subscribers[pick % len(self.subscribers)], count)
        if turns:
            self._watch()

    def _publish(self, absent: int, has_sizes: bool) -> None:
        lanes = [lane for _, lane, _, _ in self.rest]
        batch = EventBatch(
            [Raw(kind=kind, name=name) for name, _, kind, _ in self.rest],
            [Payload(name) for name, _, _, _ in self.rest],
            lane=lanes[0],
            lanes=lanes if len(set(lanes)) > 1 else None,
            sizes=[size for _, _, _, size in self.rest] if has_sizes else None,
        )
        entries = [(name, lane, size if has_sizes else UNKNOWN_SIZE, {"kind": kind}) for name, lane, kind, size in self.rest]
        admitted, full = self.ledger.admit(batch, self.limit)
        room, crowded = self.naive.room(entries, self.limit)
        assert (admitted, {cursor.id for cursor in full}) == (room, {member.id for member in crowded})
        if not admitted:
            self.ledger.await_room(full)
            return
        part = batch[:admitted]
        for raw, payload in part:
            self.raws[raw["name"]] = weakref.ref(raw)
            self.payloads[payload.name] = weakref.ref(payload)
        self.ledger.publish(part, now=self.now, absent=absent)
        for event in self.naive.publish(entries[:admitted], absent=absent):
            self.lives[self.ledger.lanes[event.lane.key]] = event.lane
        self.rest = self.rest[admitted:]
        self.is_watched = False
        self.bounds = (self.ledger.in_flight, self.ledger.in_flight_bytes)

    def _watch(self) -> None:
        self.ledger.watch()
        self.is_watched = True

    # -- subscribers

    @rule(pick=PICK, acts=ACTS)
    @precondition(lambda self: self.subscribers)
    def handle(self, pick: int, acts: list[str]) -> None:
        self._handle(pick, acts)

    @rule(pick=PICK, acts=ACTS)
    @precondition(lambda self: self.subscribers)
    def handle_more(self, pick: int, acts: list[str]) -> None:
        """The same again: most of what happens on a stream is filters that handle events."""
        self._handle(pick, acts)

    def _handle(self, pick: int, acts: list[str]) -> None:
        subscriber = self.subscribers[pick % len(self.subscribers)]
        cursor, member = subscriber.cursor, subscriber.member
        for act in acts:
            if act == "pull":
                self._pull(subscriber, 1)
            elif act == "drain":
                self._pull(subscriber, 99)
            elif act.startswith("bind"):
                write_id = len(self.write_ids) + 1
                self.write_ids.append(write_id)
                assert cursor.bind(write_id, len(act)) == self.naive.bind(member, write_id, len(act))
                if act == "bind, confirm":
                    self._confirm([write_id])
                elif act == "bind, refuse":
                    self._refuse([write_id])
            elif act == "reject":
                assert cursor.reject("bad") == self.naive.reject(member, "bad")
            elif act == "resume":
                subscriber.iterator = iter(())
                cursor.resume()
                self.naive.resume(member)
            elif act == "wait":
                self.ledger.await_room([cursor] if member.is_active else [])

    def _pull(self, subscriber: Subscriber, count: int) -> None:
        for _ in range(count):
            if subscriber.member.has_failed:
                with pytest.raises(StreamError):
                    subscriber.pull(self.ledger)
                return
            is_waited_for = subscriber.cursor in self.ledger.full
            had_news, self.has_news = self.has_news, False
            raw = subscriber.pull(self.ledger)
            assert self.has_news or not is_waited_for, "the reader waits for this pull"
            self.has_news |= had_news
            event = self.naive.pull(subscriber.member)
            if event is None:
                assert raw is NOTHING, f"{subscriber.member.id} was offered {raw}"
                return
            assert raw is not NOTHING, f"{subscriber.member.id} was not offered {event.name}"
            assert raw["name"] == event.name

    # -- the store

    @rule(confirms=st.lists(st.integers(0, 20), max_size=5), refuses=st.lists(st.integers(0, 20), max_size=1))
    @precondition(lambda self: self.write_ids)
    def store_answers(self, confirms: list[int], refuses: list[int]) -> None:
        """Recent write ids, some of them twice or resolved already."""
        self._confirm([self.write_ids[-1 - pick % len(self.write_ids)] for pick in confirms])
        self._refuse([self.write_ids[-1 - pick % len(self.write_ids)] for pick in refuses])

    def _confirm(self, write_ids: list[int]) -> None:
        self.ledger.confirm(write_ids)
        self.naive.confirm(write_ids)

    def _refuse(self, write_ids: list[int]) -> None:
        self.ledger.refuse(write_ids)
        self.naive.refuse(write_ids)

    # -- the broker

    @rule()
    @precondition(lambda self: self.ledger.news)
    def advance(self) -> None:
        """The pump makes the calls that it may."""
        while self._make_call():
            pass

    @rule(what=st.sampled_from(["return", "return", "return", "fail", "backoff", "advance"]), pick=PICK)
    @precondition(lambda self: self.calls)
    def call(self, what: str, pick: int) -> None:
        """A call that is out ends, or one that waits for its retry is due."""
        waits = what == "backoff"
        calls = [call for call in self.calls if call.waits is waits]
        if what == "advance":
            self._make_call()
        elif calls:
            self._end_call(calls[pick % len(calls)], what)

    def _make_call(self) -> bool:
        news = self.ledger.news
        while news and sum(not call.waits for call in self.calls) < MAX_CALLS:
            lane = next(iter(news))
            del news[lane]
            if lane.is_busy or lane.is_lost:
                continue
            if lane.retry is not None:
                harvest, lane.retry = lane.retry, None
                next(call for call in self.calls if call.harvest is harvest).waits = False
                lane.is_busy = True
                return True
            if self._harvest(lane):
                return True
        return False

    def _harvest(self, lane: Lane) -> bool:
        life = self.lives[lane]
        expected, breaks = self.naive.next_call(life)
        harvest = self.ledger.harvest(lane)
        carried = [] if harvest is None else list(harvest.items)
        found = [item.broker_payload.name for item in carried]
        if lane.key is UNORDERED:
            expected.sort(key=lambda event: found.index(event.name) if event.name in found else len(found))
        if self.is_watched:
            assert found == names(expected)
        else:  # the watermark may lag until the loop has turned
            assert found == names(expected)[: len(found)]
            expected = expected[: len(found)]
            breaks = breaks and bool(harvest and harvest.breaks)
        if harvest is None:
            return False
        assert harvest.breaks == breaks
        for item, event in zip(carried, expected, strict=True):
            outcome = item.outcome
            assert outcome.acked + outcome.failed + outcome.rejected == event.size_of_cohort
            assert outcome == event.outcome, event.name
        assert harvest.bytes == sum(event.size for event in expected)
        self.naive.call(life, expected, breaks=breaks)
        lane.is_busy = True
        self.calls.append(Call(harvest, life))
        return True

    def _end_call(self, call: Call, what: str) -> None:
        lane = call.harvest.lane
        if what == "backoff":
            lane.is_busy = False
            if not lane.is_lost:
                self.ledger.news[lane] = None
        elif what == "fail" and not lane.is_lost:
            lane.retry = call.harvest
            call.waits = True
        else:
            lane.is_busy = False
            self.ledger.settle(call.harvest)
            self._returned(call)

    def _returned(self, call: Call) -> None:
        self.calls.remove(call)
        self.naive.return_call(call.life)

    # -- what is rare

    @rule(what=st.sampled_from(["x", "y", "UNORDERED", "store goes", "store comes", "tick", "tick", "tick", "ticks"]))
    def time_and_trouble(self, what: str) -> None:
        if what.startswith("store"):
            self.is_away = what == "store goes"
            self.naive.store_available(not self.is_away)
        elif what.startswith("tick"):
            for _ in range(1 if what == "tick" else 3):
                self._tick()
        elif not self.rest:
            self._lose_lane(UNORDERED if what == "UNORDERED" else what)

    def _lose_lane(self, key: Hashable) -> None:
        lost = self.ledger.lose_lane(key)
        life = self.naive.lose(key)
        if life is not None:
            assert lost is not None
            for call in [call for call in self.calls if call.life is life and call.waits]:
                self._returned(call)

    def _tick(self) -> None:
        """A second passes, and a sweep looks who is overdue."""
        self.now += 1
        if self.is_away:
            self.ledger.store_away += 1
        naive = self.naive
        naive.note()
        verdicts = {member: naive.overdue(member, ACK_TIMEOUT, QUEUE_TIMEOUT) for member in naive.cohort}
        lapsed = naive.departed_late(ACK_TIMEOUT)
        overdue = {cursor.id: reason for cursor, reason in self.ledger.sweep(self.now, ACK_TIMEOUT, QUEUE_TIMEOUT)}
        for event, member, must in lapsed:
            share = event.cohort[member]
            if share.state is State.PASSED and not event.is_void:
                is_forgotten = not share.writes & self.ledger._writes.keys()
                assert is_forgotten or not must
                if is_forgotten:
                    naive.lapse(event, member)
        for member, (must, may) in verdicts.items():
            assert member.id not in overdue or may, f"{member.id} is not overdue: {overdue[member.id]}"
            assert member.id in overdue or not must, f"{member.id} is overdue"
        for subscriber in self.subscribers:
            if subscriber.member.id in overdue:
                self._fail(subscriber, AckTimeout("too slow"))

    # -- what always holds

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "naive"):
            self.same_hands()
            self.same_bounds()
            self.room_is_news()
            self.exact_watermark()
            if self.is_watched:
                self.nothing_is_held_without_cause()
            self.nothing_leaks()
            self.steps += 1
            if not self.steps % 8:  # costs as much as the rest
                self.no_segment_is_kept()

    def same_hands(self) -> None:
        for subscriber in self.subscribers:
            hand, member = subscriber.cursor.hand(gated=True), subscriber.member
            if member.hand is None:
                assert hand is None
            else:
                assert hand is not None
                assert (hand.raw_event["name"], hand.void, hand.lane) == (
                    member.hand.name, member.holds_void, member.hand.lane.key
                )  # fmt: skip
                if not member.holds_void:
                    assert hand.attempt == member.attempt

    def same_bounds(self) -> None:
        assert self.ledger.in_flight == len(self.naive.flying)
        assert self.ledger.in_flight_bytes == self.naive.in_flight_bytes
        assert self.ledger._writes.keys() == self.naive.sizes.keys()

    def room_is_news(self) -> None:
        """The reader may wait for room in flight, and is told when there is some."""
        events, size = self.bounds
        self.bounds = (self.ledger.in_flight, self.ledger.in_flight_bytes)
        assert self.has_news or (events <= self.bounds[0] and size <= self.bounds[1])
        self.has_news = False

    def exact_watermark(self) -> None:
        watermark = self.ledger.watermark
        assert watermark >= self.watermark, "it never falls"
        assert watermark <= self.naive.watermark, "somebody is not past it"
        assert watermark == self.naive.watermark or not self.is_watched
        self.watermark = watermark

    def nothing_is_held_without_cause(self) -> None:
        """What may be told is told as soon as the pump gets to it."""
        for life in self.naive.lanes.values():
            lane = self.ledger.lanes.get(life.key)
            if lane is None:
                assert not life.untold
            elif not lane.is_busy and self.naive.next_call(life)[0]:
                assert lane in self.ledger.news, life.key

    def nothing_leaks(self) -> None:
        """R17: a raw event lives until it is settled, or as long as somebody has it in hand; a payload until it was told."""
        in_hand = {subscriber.member.hand.name for subscriber in self.subscribers if subscriber.member.hand is not None}
        self.departed = {cursor: member for cursor, member in self.departed.items() if cursor in self.ledger._departed}
        in_hand |= {member.hand.name for member in self.departed.values() if member.hand is not None}
        for event in self.naive.events:
            is_over = event.is_told or event.is_lost
            if is_over and event.name in self.raws and event.name not in in_hand:
                assert self._is_gone(self.raws, event.name), f"the raw event {event.name} is kept"
            if (event.is_settled or event.is_lost) and event.name in self.payloads:
                assert self._is_gone(self.payloads, event.name), f"the payload {event.name} is kept"

    @staticmethod
    def _is_gone(references: dict[int, Any], name: int) -> bool:
        if references[name]() is not None:
            gc.collect()
        if references[name]() is None:
            del references[name]
            return True
        return False

    def no_segment_is_kept(self) -> None:
        """A segment is freed when no cursor and no lane needs it; the one before the oldest may wait for the next."""
        behind = min((cursor.segment.first for cursor in self.ledger.cursors.values()), default=self.ledger.next_seq)
        needed = {event.seq for event in self.naive.flying if not event.is_told}
        needed |= {segment.first + index for cursor in self.ledger.indexed.values() for segment, index in cursor.queue}
        spare = [
            segment.first
            for segment in reachable_segments(self.ledger)
            if segment.first + segment.count < behind and needed.isdisjoint(range(segment.first, segment.first + segment.count))
        ]
        assert len(spare) <= 1, spare

    def teardown(self) -> None:
        """Everybody leaves, the store answers, the pump is done: nothing is left."""
        if not hasattr(self, "naive") or sys.exception() is not None:
            return
        self._watch()
        while self.subscribers:
            self._leave(self.subscribers[0], abandon=False)
        self._confirm(self.write_ids)
        while self._make_call() or self.calls:
            call = min(self.calls, key=lambda call: call.waits)
            self._end_call(call, "backoff" if call.waits else "return")
        assert (self.ledger.in_flight, self.ledger.in_flight_bytes) == (0, 0)
        assert all(event.is_settled or event.is_lost for event in self.naive.events)
        assert len(self.ledger.lanes) <= IDLE_LANES
        self.nothing_leaks()
        self.no_segment_is_kept()
        assert not self.raws
        assert not self.payloads


def reachable_segments(ledger: Ledger) -> list[Segment]:
    """All segments with events that the ledger keeps alive, but for the places of those who left."""
    found: list[Segment] = []
    seen: set[int] = set()
    pending: list[Any] = [ledger]
    while pending:
        item = pending.pop()
        kind = type(item)
        if id(item) in seen or not (kind.__module__.startswith("headrace.streams") or kind in (list, dict, set, tuple, deque)):
            continue
        seen.add(id(item))
        if isinstance(item, AnyCursor) and not item.is_active:
            continue
        if isinstance(item, Segment) and item.count:
            found.append(item)
        pending.extend(gc.get_referents(item))
    return found
