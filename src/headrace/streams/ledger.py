"""The bookkeeping of one stream: which events are in flight, who has moved past them, what may be told to the broker.

Every ack rule can be read here, and nothing here waits: no asyncio, no clock, no I/O. Times are passed in.

The central fact is the **watermark**: every cursor has moved past all sequence numbers below it. An event is resolved if it is
below the watermark and nothing holds it (an unconfirmed write, a match not yet moved past). Its outcome is what is left of the
cohort after the noted exceptions: `acked = size - failed - rejected`. So an ordinary event costs nothing per subscriber.

The watermark moves when the last cursor is through the oldest segment. Only while somebody is stuck in it is the exact place
of each cursor counted (`watch`). `segment.py` has the state, `cursor.py` the subscribers' places; the model test in
`tests/model` says the same rules once more, naively.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

from headrace.streams.batch import AdvanceBatch, EventBatch
from headrace.streams.contract import UNORDERED
from headrace.streams.cursor import AnyCursor, Cursor, IndexedCursor, Write
from headrace.streams.match import MatchIndex
from headrace.streams.segment import Harvest, Lane, Run, Segment

IDLE_LANES: Final = 64
"""Lanes that are kept though they are empty, so that a lane is not made anew for each batch."""

_SETTLED: Final = AdvanceBatch([], [])


class Ledger:
    """One stream's events in flight and its subscribers' places.

    `on_news` is called whenever a lane may have something to settle or room may have come free; it must only take note.
    """

    def __init__(self, *, on_news: Callable[[], None] = lambda: None) -> None:
        self.cursors: dict[Hashable, Cursor] = {}
        self.indexed: dict[Hashable, IndexedCursor] = {}
        self.index: MatchIndex[IndexedCursor] = MatchIndex()
        self.lanes: dict[Hashable, Lane] = {}
        self.news: dict[Lane, None] = {}
        """Lanes that may have something to harvest, oldest news first."""
        self.in_flight = 0
        """Events read and not settled."""
        self.in_flight_bytes = 0
        """Bytes of their raw events and payloads, and of derived events that are not stored."""
        self.full: set[AnyCursor] = set()
        """Whom the reader waits for."""
        self.restarted: set[Hashable] = set()
        """Ordered lanes that started over since the batch was read that is being published: in it they are of the old run."""
        self.next_seq = 0
        self.watermark = 0
        self.store_away = 0.0
        """Seconds, in all, that the store was away."""
        self._ordered = False
        self._on_news = on_news
        self._tail = Segment(raws=[], payloads=[])
        self._oldest: Segment | None = None
        self._passed: Segment | None = None
        self._writes: dict[int, Write] = {}
        self._departed: set[AnyCursor] = set()

    def set_ordered(self, ordered: bool) -> None:
        """Say, before anything is published, whether the source's lanes break at a failed event."""
        self._ordered = ordered

    # -- the cohort

    def join(self, id: Hashable, match: Any = None) -> AnyCursor:
        """Add a subscriber; it is offered what is published from now on. `match`: see `shared_stream_match`."""
        if match is None:
            cursor = self.cursors[id] = Cursor(self, id, self._tail)
            return cursor
        indexed = IndexedCursor(self, id)
        self.index.add(indexed, match)
        self.indexed[id] = indexed
        return indexed

    def leave(self, cursor: AnyCursor, *, abandon: bool = False) -> None:
        """Take a subscriber out of the cohort: what it has not pulled, or not pulled again, fails. The event in hand is moved
        past, with `abandon` it fails too. What it derived and is not yet stored still may be."""
        if not cursor.is_active:
            return
        event = cursor.event()
        abandon = abandon or cursor.again
        if abandon and event is not None:
            cursor.forget(*event)
        unpulled = self._remove(cursor)
        if abandon and event is not None:
            self._fail(*event)
        for segment, index in unpulled:
            self._fail(segment, index)
        if cursor.writes:
            self._departed.add(cursor)

    def fail(self, cursor: AnyCursor, error: Exception) -> None:
        """Take a subscriber out of the cohort and count it as failed in every event in flight that it has not resolved."""
        cursor.failure = cursor.failure or error
        if not cursor.is_active:
            return
        event = cursor.event()
        unresolved = {(write.segment, write.index): None for write in cursor.writes.values()}
        if event is not None:
            unresolved[event] = None
        for write_id in list(cursor.writes):
            self.drop_write(write_id)
        unpulled = self._remove(cursor)
        for segment, index in [*unresolved, *unpulled]:
            self._fail(segment, index)

    def _remove(self, cursor: AnyCursor) -> list[tuple[Segment, int]]:
        cursor.is_active = False
        self.made_room(cursor)
        unpulled = cursor.detach()  # while it is still counted among the cursors of a watched segment
        if isinstance(cursor, IndexedCursor):
            del self.indexed[cursor.id]
            self.index.remove(cursor)
        else:
            del self.cursors[cursor.id]
        return unpulled

    @property
    def cohort_size(self) -> int:
        return len(self.cursors) + len(self.indexed)

    # -- fan-out

    def admit(self, batch: EventBatch, limit: int) -> tuple[int, list[AnyCursor]]:
        """How many events of the batch fit before somebody has more than `limit` unpulled, and who is full then."""
        room = limit - (self.next_seq - self.watermark)
        full: list[AnyCursor] = []
        if room < len(batch) and self.cursors:
            places = [(cursor, limit - self.unpulled(cursor, more_than=limit - len(batch))) for cursor in self.cursors.values()]
            room = min(place for _, place in places)
            full = [cursor for cursor, place in places if place <= 0]
        room = min(max(room, 0), len(batch)) if self.cursors else len(batch)
        if self.indexed and self.in_flight + room >= limit:
            coming: dict[IndexedCursor, int] = {}
            for position, raw in enumerate(batch.raws[: max(room, 1)]):
                for cursor in self.index.match(raw):
                    coming[cursor] = coming.get(cursor, 0) + 1
                    if coming[cursor] > limit - self.unpulled(cursor, more_than=limit - coming[cursor]):
                        full.append(cursor)
                if full:
                    return position, full if not position else []
        return room, full

    def await_room(self, cursors: Iterable[AnyCursor]) -> None:
        """Tell at the next pull of any of these, through `on_news`."""
        for cursor in cursors:
            self.full.add(cursor)
            if isinstance(cursor, Cursor):
                cursor.be_careful()

    def made_room(self, cursor: AnyCursor) -> None:
        """A subscriber has pulled, or is gone; the reader may have waited for that."""
        if cursor in self.full:
            self.full.remove(cursor)
            self._on_news()

    def unpulled(self, cursor: AnyCursor, *, more_than: int = 0) -> int:
        """Events that the subscriber may pull and has not; void ones are told apart only if there are `more_than` with them."""
        if isinstance(cursor, IndexedCursor):
            count = len(cursor.queue)
        else:
            segment, index = cursor.position()
            count = self.next_seq - segment.first - index - 1
        return count - cursor.void_ahead() if count > more_than else count

    def publish(self, batch: EventBatch, *, now: float = 0.0, absent: int = 0) -> list[IndexedCursor]:
        """Fan a batch out to the cohort of this moment; returns the indexed subscribers it was offered to, repeats possible.
        `absent` expected members count as failed."""
        segment = Segment(
            raws=batch.raws,
            payloads=batch.payloads,
            ids=batch.ids,
            sizes=batch.sizes,
            first=self.next_seq,
            size=len(self.cursors) + len(self.indexed) + absent,
            absent=absent,
            remaining=len(self.cursors),
            time=now,
        )
        count = segment.count
        size = segment.bytes_of(range(count))
        self.next_seq += count
        self.in_flight += count
        self.in_flight_bytes += size
        if batch.lanes is None:
            segment.lane = lane = self._lane(batch.lane)
            self._append(lane, segment, range(count), size)
        else:
            self._assign_lanes(segment, batch.lanes)
        self._tail.next = segment
        self._tail = segment
        offered = self._offer_matches(segment) if self.indexed else []
        if self._oldest is None:
            self._oldest = segment
            if not segment.remaining:
                self._complete()
        return offered

    def _assign_lanes(self, segment: Segment, keys: list[Hashable]) -> None:
        by_key: dict[Hashable, list[int]] = {}
        for index, key in enumerate(keys):
            by_key.setdefault(key, []).append(index)
        lanes = {key: self._lane(key) for key in by_key}
        segment.lanes = [lanes[key] for key in keys]
        for key, indices in by_key.items():
            self._append(lanes[key], segment, indices, segment.bytes_of(indices))

    def _lane(self, key: Hashable) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key, ordered=self._ordered)
        return lane

    def _append(self, lane: Lane, segment: Segment, indices: Sequence[int], size: int) -> None:
        lane.runs.append(Run(segment, indices))
        lane.events += len(indices)
        lane.bytes += size
        if not lane.is_ordered:
            return
        if lane.broken is not None or lane.restarting or lane.key in self.restarted:
            self._void([(segment, index) for index in indices])
            self.news[lane] = None
            self._on_news()
        elif segment.absent or not segment.size:
            self._break(lane, segment.first + indices[0])

    def _offer_matches(self, segment: Segment) -> list[IndexedCursor]:
        offered: list[IndexedCursor] = []
        for index, raw in enumerate(segment.raws):
            if index not in segment.void:
                for cursor in self.index.match(raw):
                    cursor.queue.append((segment, index))
                    segment.hold(index)
                    offered.append(cursor)
        return offered

    # -- moving past

    def watch(self) -> None:
        """Count the exact place of each cursor in the oldest segment, if somebody is stuck in it."""
        segment = self._oldest
        if segment is None or segment.passed_by is not None:
            return
        segment.passed_by = passed_by = [0] * (segment.count + 1)
        segment.low = 0
        for cursor in self.cursors.values():
            if cursor.segment is segment:
                passed_by[cursor.passed()] += 1
                cursor.be_careful()
            elif cursor.segment.first < segment.first or not cursor.segment.count:
                passed_by[0] += 1
        self._raise_low(segment)

    def move(self, segment: Segment, passed: int, now_passed: int) -> None:
        """A cursor in a watched segment moves from `passed` events to `now_passed`."""
        passed_by = segment.passed_by
        assert passed_by is not None
        passed_by[passed] -= 1
        passed_by[now_passed] += 1
        if passed == segment.low and not passed_by[passed]:
            self._raise_low(segment)

    def _raise_low(self, segment: Segment) -> None:
        passed_by = segment.passed_by
        assert passed_by is not None
        low = start = segment.low
        while low < segment.count and not passed_by[low]:
            low += 1
        if low > start:
            segment.low = low
            self.watermark = segment.first + low
            self._note(segment.lanes_of(start, low))

    def leave_segment(self, segment: Segment, passed: int) -> None:
        """A cursor that had passed `passed` events of the segment is through it."""
        segment.remaining -= 1
        if segment.passed_by is not None:
            self.move(segment, passed, segment.count)
        if not segment.remaining and segment is self._oldest:
            self._complete()

    def _complete(self) -> None:
        segment = self._oldest
        watched = segment is not None and segment.passed_by is not None
        while segment is not None and not segment.remaining:
            segment.passed_by = None
            self._note(segment.lanes_of(0, segment.count))
            if self._passed is not None:
                self._passed.next = None  # nobody is at it any more; kept alive by a stuck event, it must not keep the rest
            self._passed = segment
            segment = segment.next
        self._oldest = segment
        self.watermark = segment.first if segment is not None else self.next_seq
        if watched:
            self.watch()

    def _note(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self.news[lane] = None
        self._on_news()

    def touch(self, segment: Segment, index: int) -> None:
        """Something about the event changed: its lane may have news."""
        self.news[segment.lane_at(index)] = None
        self._on_news()

    def release(self, segment: Segment, index: int) -> bool:
        """The event waits for one thing less; whether that was the last and is news."""
        if index not in segment.held or not segment.release(index):
            return False
        lane = segment.lane_at(index)
        if (segment, index) in lane.stragglers:
            lane.stragglers.remove((segment, index))
            lane.ready.append((segment, index))
        self.touch(segment, index)
        return True

    # -- writes

    def add_write(self, write_id: int, write: Write) -> None:
        self._writes[write_id] = write
        write.cursor.writes[write_id] = write
        write.segment.hold(write.index)
        self.in_flight_bytes += write.size

    def drop_write(self, write_id: int) -> Write | None:
        """The event no longer waits for this write."""
        write = self._writes.pop(write_id, None)
        if write is None:
            return None
        cursor = write.cursor
        del cursor.writes[write_id]
        if not cursor.writes:
            self._departed.discard(cursor)
        self.in_flight_bytes -= write.size
        if not self.release(write.segment, write.index):
            self._on_news()  # there is room for as many bytes
        return write

    def confirm(self, write_ids: Iterable[int]) -> None:
        """The derived events behind these are stored. Unknown ids are ignored."""
        for write_id in write_ids:
            self.drop_write(write_id)

    def refuse(self, write_ids: Iterable[int]) -> None:
        """The store refused these: their events fail at once for who derived them."""
        for write_id in write_ids:
            write = self.drop_write(write_id)
            if write is None:
                continue
            cursor, segment, index = write.cursor, write.segment, write.index
            cursor.forget(segment, index)
            if cursor.event() == (segment, index):
                cursor.pass_early()
            self._fail(segment, index)

    # -- failures

    def _fail(self, segment: Segment, index: int) -> None:
        """One member of the cohort failed the event."""
        if index in segment.void:
            return
        segment.fail(index)
        lane = segment.lane_at(index)
        if lane.is_ordered:
            self._break(lane, segment.first + index)
        self.touch(segment, index)

    def _break(self, lane: Lane, seq: int) -> None:
        """The ordered lane is broken at `seq`: what is behind it is void."""
        if lane.broken is None or seq < lane.broken:
            lane.broken = seq
            self._void(
                [
                    (run.segment, index)
                    for run in lane.runs
                    if run.segment.first + run.segment.count > seq
                    for index in run.left()
                    if run.segment.first + index > seq and index not in run.segment.void
                ]
            )

    def _void(self, events: Sequence[tuple[Segment, int]]) -> None:
        """Nobody is offered these any more, and whatever was or will be said of them does not count."""
        if not events:
            return
        segments = set()
        for segment, index in events:
            segment.make_void(index)
            segments.add(segment)
        for write_id, write in list(self._writes.items()):
            if write.segment in segments and write.index in write.segment.void:
                self.drop_write(write_id)
        for cursor in list(self.cursors.values()):
            if cursor.segment in segments:
                event = cursor.event()
                cursor.be_careful()
                if event is not None and event[1] in event[0].void:
                    cursor.pass_early()

    def lose_lane(self, key: Hashable) -> Lane | None:
        """The source lost the lane: its events leave without an outcome, and nothing said of them later matters."""
        lane = self.lanes.pop(key, None)
        if lane is None:
            return None
        lane.is_lost = True
        self.news.pop(lane, None)
        if lane.retry is not None:
            self._settled(lane, lane.retry)
            lane.retry = None
        lost = [(run.segment, index) for run in lane.runs for index in run.left()]
        lost += [*lane.stragglers, *lane.ready]
        self._void(lost)
        for segment, index in lost:
            self.in_flight_bytes -= segment.bytes_of((index,))
            segment.raws[index] = segment.payloads[index] = None
        self.in_flight -= len(lost)
        lane.runs.clear()
        lane.stragglers.clear()
        lane.ready.clear()
        self._on_news()
        return lane

    # -- settling

    def harvest(self, lane: Lane) -> Harvest | None:
        """Take what the lane may settle in its next `advance` call: its contiguous resolved prefix; of `UNORDERED`, all that is
        resolved; of a broken lane, with the failed event, everything behind it. None if there is nothing."""
        harvest = Harvest(lane)
        if lane.key is UNORDERED:
            self._harvest_resolved(lane, harvest)
        else:
            self._harvest_prefix(lane, harvest)
        return harvest if harvest.items.payloads else None

    def _harvest_prefix(self, lane: Lane, harvest: Harvest) -> None:
        while lane.runs:
            run = lane.runs[0]
            if lane.broken is None and not run.segment.void and not harvest.stale:
                if not self._take_resolved(run, harvest):
                    return
            elif not self._take_broken(lane, run, harvest):
                return
            lane.runs.popleft()

    def _take_broken(self, lane: Lane, run: Run, harvest: Harvest) -> bool:
        """One by one, where the lane is broken or has void events; whether the whole run was taken."""
        segment = run.segment
        for index in run.left():
            seq = segment.first + index
            if not harvest.breaks:
                # void and not behind a failed event: came while the lane restarted, leaves in a call of its own
                stale = (lane.broken is None or seq < lane.broken) and index in segment.void
                if stale != harvest.stale and harvest.items:
                    return False
                harvest.stale = stale
                if not stale and (seq >= self.watermark or index in segment.held):
                    return False
            self._take(run, 1, harvest)
            if seq == lane.broken:
                lane.broken = None
                lane.restarting = harvest.breaks = True
        return True

    def _harvest_resolved(self, lane: Lane, harvest: Harvest) -> None:
        for segment, index in lane.ready:
            segment.take([index], harvest)
        lane.ready.clear()
        while lane.runs:
            run = lane.runs[0]
            if self._take_resolved(run, harvest):
                lane.runs.popleft()
                continue
            index = run.indices[run.start]
            if run.segment.first + index >= self.watermark:
                return
            lane.stragglers.add((run.segment, index))
            run.start += 1

    def _take_resolved(self, run: Run, harvest: Harvest) -> bool:
        """Take the resolved events at the head of the run; whether that was all of it."""
        segment = run.segment
        if segment.first + segment.count <= self.watermark and not segment.held and not run.start and segment.lanes is None:
            segment.take_all(harvest)
            return True
        self._take(run, run.resolved(self.watermark), harvest)
        return run.start == len(run.indices)

    @staticmethod
    def _take(run: Run, count: int, harvest: Harvest) -> None:
        if count:
            run.segment.take(run.indices[run.start : run.start + count], harvest)
            run.start += count

    def settle(self, harvest: Harvest) -> None:
        """The `advance` call of this harvest returned: its events are no longer in flight."""
        lane = harvest.lane
        if lane.is_lost:
            if not harvest.items:
                return
        elif harvest.breaks:
            lane.restarting = False
            self.restarted.add(lane.key)
        self._settled(lane, harvest)
        if not lane.is_lost:
            if not lane.events:
                if len(self.lanes) > IDLE_LANES:
                    self.lanes.pop(lane.key, None)
            elif lane.ready or (lane.runs and self._may_settle(lane)):
                self.news[lane] = None
        self._on_news()

    def _may_settle(self, lane: Lane) -> bool:
        """Whether its first event may be settled: news that came while the lane was busy was passed over."""
        run = lane.runs[0]
        first = run.segment.first + run.indices[run.start]
        return first < self.watermark or lane.broken is not None or bool(run.segment.void)

    def _settled(self, lane: Lane, harvest: Harvest) -> None:
        count = len(harvest.items.payloads)
        lane.events -= count
        lane.bytes -= harvest.bytes
        self.in_flight -= count
        self.in_flight_bytes -= harvest.bytes
        harvest.items = _SETTLED
        harvest.bytes = 0

    # -- time

    def sweep(self, now: float, ack_timeout: float, queue_timeout: float) -> list[tuple[AnyCursor, str]]:
        """Note every place, and say who is overdue, and why. A place's clock starts at the first sweep that sees it."""
        overdue = []
        for cursor in [*self.cursors.values(), *self.indexed.values()]:
            reason = self._overdue(cursor, now, ack_timeout, queue_timeout)
            if reason is not None:
                overdue.append((cursor, reason))
        for cursor in list(self._departed):
            late = {(write.segment, write.index): None for write in self._late_writes(cursor, now, ack_timeout)}
            for segment, index in late:
                cursor.forget(segment, index)
                self._fail(segment, index)
        return overdue

    def _overdue(self, cursor: AnyCursor, now: float, ack_timeout: float, queue_timeout: float) -> str | None:
        place = None
        if cursor.in_hand:
            segment, index = cursor.position()
            place = segment.first + index
        if cursor.noted != place:
            cursor.noted, cursor.noted_at = place, now
        since = cursor.noted_at
        if cursor.event() is not None and now - since >= ack_timeout:
            return f"it had one event in hand for {ack_timeout} s"
        unpulled = cursor.oldest_unpulled()
        if unpulled is not None and now - max(since if place is not None else unpulled.time, unpulled.time) >= queue_timeout:
            return f"it pulled nothing for {queue_timeout} s while events waited"
        if self._late_writes(cursor, now, ack_timeout):
            return f"what it derived was not confirmed stored within {ack_timeout} s"
        return None

    def _late_writes(self, cursor: AnyCursor, now: float, ack_timeout: float) -> list[Write]:
        late = []
        event = cursor.event()
        for write in cursor.writes.values():
            if write.since is None:
                write.since = now
            elif event != (write.segment, write.index) and now - write.since - (self.store_away - write.away) >= ack_timeout:
                late.append(write)
        return late

    def oldest_time(self) -> float | None:
        """When the oldest event was fanned out that is not harvested; None if there is none."""
        times = [lane.runs[0].segment.time for lane in self.lanes.values() if lane.runs]
        times += [segment.time for lane in self.lanes.values() for segment, _ in lane.stragglers]
        return min(times, default=None)
