"""A whole stream under the eyes of the naive model.

The `World` hears of every step of the source and of the filters, tells it to the naive model, and compares what the engine does
with what the model allows. What is wrong is noted in `problems`: an exception would be taken for the source's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from headrace import AckTimeout, AdvanceItem, LaneLost, SharedStreamManager, SourceUnavailable, SubscriberOverflow
from headrace.streams.contract import UNORDERED
from headrace.streams.stream import Stream
from tests.model.naive import Event, LaneLife, Member, Naive, Share, State, names
from tests.model.scripted import KEY, Actor, OneByOne, Raw, Source, trigger_of

CHARGED_FOR = 60.0
EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """A stream's settings, small enough to be met often."""

    ordered: bool = False
    one_by_one: bool = False
    parallel: int = 1
    queue: int = 3
    in_flight: int = 8
    in_flight_bytes: int = 200
    ack_timeout: float = 10.0
    queue_timeout: float | None = None
    grace: float = 0.0
    overflow_grace: float = 2.0
    advance_timeout: float = 5.0
    advance_retries: int = 2
    close_timeout: float = 3.0


@dataclass(eq=False)
class Call:
    """An `advance` call, from its first try to its return."""

    lane: LaneLife
    items: list[AdvanceItem]
    is_running: bool = True
    tries: int = 1


@dataclass(eq=False)
class Life:
    """One stream, from the first subscriber to its end."""

    naive: Naive
    stream: Stream | None = None
    feed: deque[list[Raw] | LaneLost | BaseException | None] = field(default_factory=deque)
    fed: asyncio.Event = field(default_factory=asyncio.Event)
    born: float = 0.0
    source: Source | None = None
    has_opened: bool = False
    unpublished: list[Raw] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    has_ended: bool = False
    error: BaseException | None = None
    is_fatal: bool = False
    expected: frozenset[Hashable] | None = None
    missing: dict[Hashable, float] = field(default_factory=dict)
    """Who is expected and absent, and since when."""
    charges: dict[Member, list[tuple[float, float]]] = field(default_factory=dict)
    waiting: tuple[float, set[Member]] | None = None
    """Since when the reader waits, and for whom."""


class World:
    def __init__(self, bounds: Bounds) -> None:
        log = logging.getLogger("tests.model.stream")
        log.disabled = True
        self.bounds = bounds
        self.loop = asyncio.get_running_loop()
        self.manager = SharedStreamManager(
            log=log,
            max_subscriber_queue=bounds.queue,
            ack_timeout=bounds.ack_timeout,
            cohort_grace_period=bounds.grace,
            queue_timeout=bounds.queue_timeout,
            overflow_grace=bounds.overflow_grace,
            max_in_flight=bounds.in_flight,
            max_in_flight_bytes=bounds.in_flight_bytes,
            max_parallel_advances=bounds.parallel,
            advance_timeout=bounds.advance_timeout,
            advance_retries=bounds.advance_retries,
            close_timeout=bounds.close_timeout,
            observer=self,
        )
        self.lives: list[Life] = []
        self.actors: list[Actor] = []
        self.lane_of: dict[int, Hashable] = {}
        self.write_ids: list[int] = []
        self.troubles: deque[str] = deque()
        self.closing = "at once"
        self.problems: list[str] = []
        self.told: dict[Member, BaseException] = {}
        self.store_is_away = False
        self.closed_at = 0.0
        """When a source was closed last."""
        self.loop.set_exception_handler(lambda _, context: self.problems.append(f"the loop says: {context}"))

    def claim(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(f"at {self.loop.time():g} s: {problem}")

    @property
    def life(self) -> Life | None:
        """The stream that takes subscribers."""
        return self.lives[-1] if self.lives and not self.lives[-1].has_ended else None

    def life_of(self, member: Member) -> Life:
        return next(life for life in self.lives if member in life.naive.members)

    def actors_of(self, life: Life) -> list[Actor]:
        return [actor for actor in self.actors if actor.member in life.naive.members]

    # -- subscribers come and go

    def join(self, name: str, style: str, wants: set[int] | None, expected: Collection[str] | None) -> None:
        life = self.life
        is_first = life is None
        if life is None:
            life = Life(Naive(ordered=self.bounds.ordered, clock=self.loop.time), born=self.loop.time())
            life.naive.store_available(not self.store_is_away)
            self.lives.append(life)
        member = life.naive.join(name, None if wants is None else lambda raw: raw["kind"] in wants)
        stream = self.manager.subscribe(
            trigger_id=name,
            trigger=trigger_of(lambda: self._make_source(life), wants),
            key=KEY,
            expected=expected,
            on_failed=lambda error: self._on_failed(life, member, error),
        )
        life.stream = self.manager.stream(KEY)
        if expected is not None:
            life.expected = frozenset(expected)
        self._membership_changed(life)
        self.claim(is_first or not self.lives[-1].has_ended, "a subscriber joined a stream that has ended")
        self.actors.append(Actor(self, member, style, stream))

    def _make_source(self, life: Life) -> Source:
        self.claim(life.source is None, "a second producer was built for one poll")
        kind = OneByOne if self.bounds.one_by_one else Source
        life.source = kind(self, life, ordered=self.bounds.ordered, parallel=self.bounds.parallel)
        return life.source

    async def leave(self, actor: Actor, *, abandon: bool) -> None:
        self.actors.remove(actor)
        member, life = actor.member, self.life_of(actor.member)
        actor.task.cancel()
        await asyncio.wait({actor.task})
        self._sync(actor)
        if not life.has_ended:
            if member.is_active:
                life.naive.leave(member, abandon=abandon)
            if not abandon and life.expected is not None:
                life.expected -= {member.id}
            self._membership_changed(life)
            life.has_ended = not self.actors_of(life)
            is_last = life.has_ended
            started = self.loop.time()
            await self.manager.unsubscribe(member.id, KEY, abandon=abandon)
            if is_last:
                self._has_closed(life, started)

    def _membership_changed(self, life: Life) -> None:
        absent = (life.expected or frozenset()) - {member.id for member in life.naive.cohort}
        life.missing = {name: life.missing.get(name, self.loop.time()) for name in absent}

    async def stop(self) -> None:
        started = self.loop.time()
        life = self.life
        await self.manager.stop_all()
        if life is not None:
            self.claim(life.has_ended, "stop_all told nobody")
            self._has_closed(life, started)

    def _has_closed(self, life: Life, started: float) -> None:
        took = self.loop.time() - started
        self.claim(took <= self.bounds.advance_timeout + self.bounds.close_timeout + EPSILON, f"the stop took {took} s")
        self.claim(life.source is None or life.source.closed == 1, "the producer was not closed once")

    def _on_failed(self, life: Life, member: Member, error: BaseException) -> None:
        """The engine tells a subscriber of its end, or of the stream's."""
        is_end = not isinstance(error, AckTimeout | SubscriberOverflow)
        self.claim(member not in self.told or is_end, f"{member.id} was told twice")
        self.told.setdefault(member, error)
        if is_end:
            self.claim(life.error is None or life.error is error, f"{member.id} was told of another error: {error!r}")
            life.has_ended = True
            life.error = error

    def feed(self, batch: list[Raw]) -> None:
        if self.life is not None:
            for raw in batch:
                self.lane_of[raw["name"]] = raw["lane"]
            self._feed(*([[raw] for raw in batch] if self.bounds.one_by_one else [batch]))

    def lose_lane(self, key: Hashable) -> None:
        if not self.bounds.one_by_one:
            self._feed(LaneLost(key))

    def end_source(self, error: Exception | None) -> None:
        """The source raises; None: it returns."""
        self._feed(error)

    def _feed(self, *items: list[Raw] | LaneLost | BaseException | None) -> None:
        if self.life is not None:
            self.life.feed.extend(items)
            self.life.fed.set()

    # -- the engine as it is seen from outside

    def on_read(self, key: Hashable, events: int, size: int) -> None:
        life = next(life for life in reversed(self.lives) if len(life.unpublished) >= events)
        naive, bounds = life.naive, self.bounds
        self._sync_all(life)
        part, life.unpublished = life.unpublished[:events], life.unpublished[events:]
        flying, flying_bytes = len(naive.flying), naive.in_flight_bytes
        self.claim(not life.has_ended, "events were fanned out after the stream's end")
        fits = flying + events <= bounds.in_flight and flying_bytes + size <= bounds.in_flight_bytes
        self.claim(fits or (not flying and events == 1), f"{events} more events than the bounds in flight admit")
        self.claim(size == sum(raw["size"] for raw in part), "the size is wrong")
        for name, since in life.missing.items():
            self.claim(self.loop.time() >= since + bounds.grace - EPSILON, f"the reader did not wait for {name}")
        entries = [(raw["name"], raw["lane"], raw["size"], raw) for raw in part]
        naive.publish(entries, absent=len(life.missing))

    def on_advanced(self, key: Hashable, items: Sequence[AdvanceItem], seconds: float) -> None:
        pass

    def on_advance_failed(self, key: Hashable, error: Exception) -> None:
        pass

    def on_subscriber_failed(self, key: Hashable, trigger_id: Hashable, error: Exception) -> None:
        life = self.lives[-1]
        member = next((member for member in life.naive.cohort if member.id == trigger_id), None)
        if member is None:
            self.claim(False, f"{trigger_id} failed a second time")
            return
        self._sync_all(life)
        if isinstance(error, AckTimeout):
            self.claim(self._is_late(life, member, 0.0, must=False), f"{member.id} was not late: {error}")
        else:
            self.claim(isinstance(error, SubscriberOverflow), f"{member.id} failed with {error!r}")
            charged = self._charged(life, member)
            self.claim(charged >= self.bounds.overflow_grace - EPSILON, f"{member.id} has cost {charged} s: {error}")
            self.claim(len(life.naive.unpulled(member)) >= self.bounds.queue, f"{member.id} was not full")
        life.naive.fail(member)
        self._membership_changed(life)

    def _is_late(self, life: Life, member: Member, tolerance: float, *, must: bool) -> bool:
        """R9. `must`: by the engine's leave to stop the clock with the store from the first derived event on."""
        naive, now = life.naive, self.loop.time()
        ack = self.bounds.ack_timeout + tolerance - EPSILON
        queue = (self.bounds.queue_timeout or self.bounds.ack_timeout) + tolerance - EPSILON
        pulled_at = member.share.pulled_at if member.share is not None else 0.0
        if member.open_hand is not None and now - pulled_at >= ack:
            return True
        unpulled = naive.unpulled(member)
        if unpulled and now - max(pulled_at, unpulled[0].time) >= queue:
            return True
        return any(
            share.writes
            and share.state is State.PASSED
            and now - share.pulled_at - naive.away_since(share.bound_at if must else share.passed_at) >= ack
            for lane in naive.lanes.values()
            for event in lane.untold
            if (share := event.cohort.get(member)) is not None
        )

    # -- the source reports

    def opened(self, source: Source) -> None:
        life, now = source.life, self.loop.time()
        life.has_opened = True
        others = [other for other in self.lives if other is not life and other.source is not None and other.source.is_open]
        self.claim(not others, "a source was opened while an older one of the key was open")
        if now < life.born + self.bounds.grace - EPSILON:
            self.claim(life.expected is not None and not life.missing, "polling did not wait for the cohort")

    def read(self, life: Life, batch: list[Raw]) -> None:
        self.claim(not life.unpublished or life.has_ended, "a batch was read before the one before it was fanned out")
        life.naive.read()
        life.unpublished = list(batch)

    def lost(self, life: Life, key: Hashable) -> None:
        if life.has_ended:
            return
        self._sync_all(life)
        lane = life.naive.lose(key)
        for call in [call for call in life.calls if call.lane is lane and not call.is_running]:
            self._forget_call(life, call)

    def reader_waits(self, life: Life) -> None:
        self._sync_all(life)
        head = life.unpublished[0]
        _, full = life.naive.room([(head["name"], head["lane"], head["size"], head)], self.bounds.queue)
        life.waiting = self.loop.time(), full

    def reader_goes_on(self, life: Life) -> None:
        if life.waiting is not None:
            since, full = life.waiting
            for member in full:
                life.charges.setdefault(member, []).append((self.loop.time(), self.loop.time() - since))
        life.waiting = None

    def _charged(self, life: Life, member: Member) -> float:
        now = self.loop.time()
        return sum(seconds for at, seconds in life.charges.get(member, ()) if at > now - CHARGED_FOR)

    def call_begins(self, source: Source, items: list[AdvanceItem]) -> Call:
        life = source.life
        naive = life.naive
        self._sync_all(life)
        found = [item.broker_payload for item in items]
        self.claim(source.is_open and not source.closed, "advance was called on a producer that is closed")
        self.claim(not life.is_fatal, "advance was called after it had failed for good")
        at_once = sum(call.is_running for call in life.calls)
        self.claim(at_once < self.bounds.parallel, f"{at_once + 1} calls at once")
        again = next((call for call in life.calls if [item.broker_payload for item in call.items] == found), None)
        if again is not None:
            self.claim(not again.is_running, "the same items were told twice at once")
            self.claim(again.items == items, "a call was tried again with other outcomes")
            self.claim(not life.has_ended, "a call was tried again after the end")
            again.is_running = True
            again.tries += 1
            self.claim(again.tries <= self.bounds.advance_retries + 1, "a call was tried too often")
            return again
        lanes = [lane for lane in naive.all_lanes if any(event.name in found for event in lane.untold)]
        if len(lanes) != 1:
            self.claim(False, f"{found} are of {len(lanes)} lanes that wait")
            return Call(LaneLife(None, False), items)
        (lane,) = lanes
        self.claim(all(call.lane is not lane for call in life.calls), f"two calls at once on lane {lane.key}")
        expected, breaks = naive.next_call(lane)
        if lane.key is UNORDERED:
            expected.sort(key=lambda event: found.index(event.name) if event.name in found else len(found))
        # the engine may learn a turn later who has moved past
        self.claim(names(expected)[: len(found)] == found, f"{found} were told, and {names(expected)} are resolved")
        carried = [next(event for event in lane.untold if event.name == name) for name in found if name in names(lane.untold)]
        for event, item in zip(carried, items, strict=False):
            self.claim(item.outcome == event.outcome, f"{event.name}: told {item.outcome}, it is {event.outcome}")
        breaks = breaks and any(event.has_failed and not event.is_void for event in carried)
        naive.call(lane, carried, breaks=breaks)
        call = Call(lane, items)
        life.calls.append(call)
        return call

    def call_ends(self, source: Source, call: Call, *, returns: bool, error: BaseException | None) -> None:
        life = source.life
        call.is_running = False
        if returns or call.lane.is_lost:
            self._forget_call(life, call)
        elif not life.has_ended:
            is_unavailable = isinstance(error, SourceUnavailable | asyncio.CancelledError)
            life.is_fatal = not is_unavailable or call.tries > self.bounds.advance_retries

    def _forget_call(self, life: Life, call: Call) -> None:
        if call in life.calls:
            life.calls.remove(call)
            life.naive.return_call(call.lane)

    # -- the filters report

    def asks(self, actor: Actor, *, in_a_turn: bool = False) -> None:
        actor.is_asking = True
        actor.has_parked = False
        actor.is_unasked = in_a_turn
        if not in_a_turn:
            self._ask(actor)

    def _ask(self, actor: Actor) -> None:
        life = self.life_of(actor.member)
        actor.is_unasked = False
        if actor.member.is_active and not life.has_ended:
            actor.has_parked = life.naive.pull(actor.member) is None

    def _sync(self, actor: Actor) -> None:
        """Learn from the engine whether a pull has begun, or has been answered, in a task that is not the filter's. What it was
        answered is compared with the model's."""
        member = actor.member
        life = self.life_of(member)
        if not actor.is_asking or not member.is_active or life.has_ended:
            return
        hand = self.manager.event_in_hand(trigger_id=member.id, key=KEY)
        name = hand.raw_event["name"] if hand is not None else None
        if actor.is_unasked and name != (member.hand.name if member.hand is not None else None):
            self._ask(actor)
        if actor.has_parked and name is not None:
            self._ask(actor)
            self.claim(member.hand is not None and member.hand.name == name, f"{member.id} was given {name}")

    def _sync_all(self, life: Life) -> None:
        for actor in self.actors_of(life):
            self._sync(actor)
        self._lapse(life)

    def _lapse(self, life: Life) -> None:
        """Learn from the engine what those who left had derived and was not stored in time; nobody is told of it."""
        kept = life.stream.ledger._writes.keys() if life.stream is not None else ()
        for event, member, share in self._left_behind(life):
            if share.writes.isdisjoint(kept):
                waited = self.loop.time() - share.pulled_at - life.naive.away_since(share.passed_at)
                self.claim(waited >= self.bounds.ack_timeout - EPSILON, f"{event.name} failed for {member.id}, which left")
                life.naive.lapse(event, member)

    @staticmethod
    def _left_behind(life: Life) -> list[tuple[Event, Member, Share]]:
        return [
            (event, member, share)
            for lane in life.naive.lanes.values()
            for event in lane.untold
            for member, share in event.cohort.items()
            if not member.is_active and share.state is State.PASSED and share.writes
        ]

    def takes(self, actor: Actor, raw: Raw) -> None:
        member = actor.member
        if actor.is_unasked or actor.has_parked:
            self._ask(actor)
        actor.is_asking = actor.has_parked = False
        hand = member.hand.name if member.hand is not None else None
        self.claim(hand == raw["name"], f"{member.id} was given {raw['name']}, next was {hand}")

    def pull_dropped(self, actor: Actor) -> None:
        """A pull was cancelled: it has moved past what was in hand, and takes nothing."""
        self._sync(actor)
        life = self.life_of(actor.member)
        if actor.is_unasked and actor.member.is_active and not life.has_ended:
            life.naive.move_past(actor.member)
            actor.has_parked = True
        actor.is_asking = actor.is_unasked = False
        self.claim(
            not actor.has_parked or self.manager.event_in_hand(trigger_id=actor.member.id, key=KEY) is None,
            f"a cancelled pull of {actor.member.id} took an event",
        )

    def pull_failed(self, actor: Actor, error: BaseException) -> None:
        actor.is_asking = False
        expected = self.told.get(actor.member)
        self.claim(error is expected, f"a pull of {actor.member.id} raised {error!r}, and it was told {expected!r}")

    def resumed(self, actor: Actor) -> bool:
        """The filter raised, and starts over with the event in hand; False: it has lost its place."""
        member = actor.member
        if member in self.told:
            return False
        actor.stream = self.manager.resume(trigger_id=member.id, key=KEY)
        self.life_of(member).naive.resume(member)
        return True

    def derives(self, actor: Actor, how: str) -> None:
        member = actor.member
        life = self.life_of(member)
        write_id = self.manager.bind_pending_event(trigger_id=member.id, key=KEY, size=len(how))
        number = write_id if write_id is not None else -1
        bound = not life.has_ended and life.naive.bind(member, number, len(how))
        self.claim(bound == (write_id is not None), f"what {member.id} derived was {'not ' * bound}bound")
        if write_id is not None:
            self.write_ids.append(write_id)
            if how == "derive, confirm":
                self.confirm([write_id])
            elif how == "derive, confirm later":
                self.loop.call_later(1, self.confirm, [write_id])
            elif how == "derive, refuse":
                self.refuse([write_id])

    def rejects(self, actor: Actor, reject: Callable[[], None]) -> None:
        self.life_of(actor.member).naive.reject(actor.member, "bad")
        reject()

    # -- the store

    def confirm(self, write_ids: list[int]) -> None:
        for life in self.lives:
            self._sync_all(life)
            if not life.has_ended:
                life.naive.confirm(write_ids)
        self.manager.confirm_persisted(write_ids)

    def refuse(self, write_ids: list[int]) -> None:
        for life in self.lives:
            self._sync_all(life)
            if not life.has_ended:
                life.naive.refuse(write_ids)
        self.manager.persist_failed(write_ids)

    def store_available(self, available: bool) -> None:
        self.store_is_away = not available
        for life in self.lives:
            life.naive.store_available(available)
        self.manager.store_available(available)

    # -- what holds when nothing moves any more

    def check(self) -> None:
        """Everything that could happen at this moment has happened."""
        for actor in self.actors:
            self._sync(actor)
            if actor.is_asking and actor.is_unasked:
                self._ask(actor)
            self._sync(actor)
        if (life := self.life) is not None:
            self._lapse(life)
            self._check_hands(life)
            self._check_deadlines(life)
            if life.source is not None and life.has_opened:
                self._check_settling(life)
                self._check_reading(life)
            else:
                self._check_opening(life)
        assert not self.problems, "\n".join(self.problems)

    def _check_hands(self, life: Life) -> None:
        stream = self.manager.stream(KEY)
        self.claim(stream is not None, "the stream is gone")
        if stream is not None:
            ledger, naive = stream.ledger, life.naive
            self.claim(ledger.in_flight == len(naive.flying), f"{ledger.in_flight} in flight, not {len(naive.flying)}")
            self.claim(
                ledger.in_flight_bytes == naive.in_flight_bytes,
                f"{ledger.in_flight_bytes} bytes in flight, not {naive.in_flight_bytes}",
            )
            self.claim(stream.missing == life.missing.keys(), f"missing are {life.missing.keys()}, not {stream.missing}")
        for actor in self.actors_of(life):
            member = actor.member
            hand = self.manager.event_in_hand(trigger_id=member.id, key=KEY)
            found = (hand.raw_event["name"], hand.void) if hand is not None else None
            expected = (member.hand.name, member.holds_void) if member.hand is not None else None
            self.claim(found == expected, f"{member.id} has {found} in hand, not {expected}")
            self.claim(len(life.naive.unpulled(member)) <= self.bounds.queue or not member.is_active, f"{member.id} overflows")

    def _check_deadlines(self, life: Life) -> None:
        tolerance = max(0.01, self.bounds.ack_timeout / 10)
        for member in life.naive.cohort:
            self.claim(not self._is_late(life, member, tolerance, must=True), f"{member.id} is late, and did not fail")
        for event, member, share in self._left_behind(life):
            waited = self.loop.time() - share.pulled_at - life.naive.away_since(share.bound_at)
            is_late = waited >= self.bounds.ack_timeout + tolerance + EPSILON
            self.claim(not is_late, f"{event.name} is late for {member.id}, which left, and did not fail")

    def _check_settling(self, life: Life) -> None:
        """Nothing is held without cause."""
        if sum(call.is_running for call in life.calls) == self.bounds.parallel:
            return
        for lane in life.naive.lanes.values():
            if all(call.lane is not lane for call in life.calls):
                resolved, _ = life.naive.next_call(lane)
                self.claim(not resolved, f"{names(resolved)} of lane {lane.key} are resolved, and not told")

    def _check_reading(self, life: Life) -> None:
        """The reader does not wait without cause."""
        head = life.feed[0] if life.feed else None
        if not life.unpublished:
            self.claim(not life.feed, f"{head} is not read")
            return
        raw, naive, now, bounds = life.unpublished[0], life.naive, self.loop.time(), self.bounds
        if naive.flying and (
            len(naive.flying) >= bounds.in_flight or naive.in_flight_bytes + raw["size"] > bounds.in_flight_bytes
        ):
            return
        if any(now < since + bounds.grace for since in life.missing.values()):
            return
        _, full = naive.room([(raw["name"], raw["lane"], raw["size"], raw)], bounds.queue)
        since = life.waiting[0] if life.waiting is not None else now
        patient = [member for member in full if self._charged(life, member) + now - since < bounds.overflow_grace]
        self.claim(len(patient) == len(full) and bool(full), f"{raw['name']} is not fanned out")

    def _check_opening(self, life: Life) -> None:
        older = [other for other in self.lives if other is not life and other.source is not None and other.source.is_open]
        has_waited = self.loop.time() >= max(life.born, self.closed_at) + self.bounds.grace
        is_complete = life.expected is not None and not life.missing
        self.claim(bool(older) or not (has_waited or is_complete), "the source is not opened")
