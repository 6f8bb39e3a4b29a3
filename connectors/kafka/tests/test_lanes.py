"""The bookkeeping of partitions: what may be committed, what is stale, what a rebalance keeps."""

from __future__ import annotations

from collections import deque

import pytest
from aiokafka import TopicPartition
from headrace_kafka.lanes import NEVER, Lane, Lanes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

ZERO, ONE, TWO = (TopicPartition("t", number) for number in range(3))


def placed(key: TopicPartition = ZERO, *, at: int = 0, committed: int | None = None) -> Lane:
    lane = Lane(key)
    lane.place(at, committed)
    return lane


def hand_out(lane: Lane, *offsets: int, after: int | None = None) -> None:
    position = offsets[-1] + 1 if after is None else after
    lane.read(position)
    lane.hand_out(offsets[-1], position)


def held(lanes: Lanes, *keys: TopicPartition) -> list[Lane]:
    """Assign partitions that start at 0."""
    change = lanes.assign(keys, unbroken=True)
    for lane in change.new:
        lane.place(0, None)
    return list(change.new)


def test_k10_the_position_follows_delivery() -> None:
    """K10: of 0, 3, 4, 9 the last settled one says where to go on: behind it, or behind what is no record."""
    lane = placed()
    hand_out(lane, 0, 3, 4, 9)
    assert [lane.settle(offset) for offset in (0, 3, 4, 9)] == [1, 4, 5, 10]
    lane = placed()
    hand_out(lane, 0, 3, 4, 9, after=12)
    assert [lane.settle(offset) for offset in (4, 9)] == [5, 12]


def test_k7_nothing_moves_backwards() -> None:
    """K7: a settlement or a reply that comes late, or again, changes nothing."""
    lanes = Lanes(acknowledging=True)
    (lane,) = held(lanes, ZERO)
    hand_out(lane, *range(10))
    lane.settle(7)
    lane.settle(3)
    assert lanes.uncommitted() == {ZERO: 8}
    lanes.acknowledge({ZERO: 8})
    lanes.acknowledge({ZERO: 4})
    assert lane.committed == 8
    assert lanes.uncommitted() == {}
    assert lanes.uncommitted(again=True) == {ZERO: 8}


def test_k24_markers_are_skipped_when_nothing_is_in_flight() -> None:
    """K24: what is no record is passed once everything before it is settled, not sooner."""
    lane = placed()
    hand_out(lane, 0, 1, 2)
    lane.settle(1)
    lane.skip_to(5)
    assert (lane.settled, lane.position) == (2, 3)
    lane.settle(2)
    lane.skip_to(5)
    assert (lane.settled, lane.position, lane.ahead) == (5, 5, 5)
    lane.read(8)
    lane.skip_to(9)
    assert lane.settled == 5, "three messages wait to be handed out"


def test_a_new_run_begins_at_the_failed_message() -> None:
    """A failed message ends the run: its messages are stale, the next offset is the failed one, after a rest."""
    lane = placed()
    hand_out(lane, *range(10))
    old = lane.run
    lane.settle(4)
    lane.break_off()
    assert not lane.is_open(now=100.0)
    lane.start_again(5, rests_until=102.0)
    assert not old.is_current
    assert lane.run.is_current
    assert (lane.ahead, lane.position, lane.settled) == (5, 5, 5)
    assert not lane.is_open(now=101.0)
    assert lane.is_open(now=102.0)


def test_failures_are_counted_until_something_settles() -> None:
    """The rest grows with each failure in a row."""
    lane = placed()
    for expected in (0, 1, 2):
        hand_out(lane, 0, 1)
        assert lane.failures == expected
        lane.start_again(0, rests_until=0.0)
    hand_out(lane, 0, 1)
    lane.settle(0)
    assert lane.failures == 0


def test_what_was_read_ahead_can_be_read_again() -> None:
    """What was dropped before it was handed out is the next to be read."""
    lane = placed()
    hand_out(lane, 0, 1)
    lane.read(5)
    lane.unread()
    assert (lane.ahead, lane.position) == (2, 2)


def test_k1_only_assigned_partitions_are_committed() -> None:
    """K1: a lost partition's settlements are nothing to commit; the kept one's are."""
    lanes = Lanes(acknowledging=True)
    zero, one = held(lanes, ZERO, ONE)
    for lane in (zero, one):
        hand_out(lane, 0, 1)
    change = lanes.assign([ONE, TWO], unbroken=True)
    assert (change.lost, change.kept, [lane.key for lane in change.new]) == ((zero,), (one,), [TWO])
    zero.settle(1)
    one.settle(1)
    assert lanes.uncommitted() == {ONE: 2}
    assert not zero.is_alive


def test_k4_a_partition_that_comes_back_is_another_lane() -> None:
    """K4: the old life's run is not the new one's, whatever the offsets."""
    lanes = Lanes(acknowledging=True)
    (old,) = held(lanes, ZERO)
    hand_out(old, 0, 1)
    run = old.run
    lanes.assign([], unbroken=True)
    (new,) = held(lanes, ZERO)
    old.settle(1)
    assert not run.is_current
    assert new.settled == 0
    assert lanes.get(ZERO) is new


def test_k5_a_broken_membership_keeps_nothing() -> None:
    """K5: when generations were missed, others may have had the partitions: each begins anew."""
    lanes = Lanes()
    zero, one = held(lanes, ZERO, ONE)
    change = lanes.assign([ZERO, ONE], unbroken=False)
    assert change.lost == (zero, one)
    assert [lane.key for lane in change.new] == [ZERO, ONE]


def test_positions_are_committed_only_when_outcomes_come() -> None:
    """Without outcomes no position is committed for the first time; those the broker has are renewed."""
    lanes = Lanes()
    zero, one = lanes.assign([ZERO, ONE], unbroken=True).new
    zero.place(5, 5)
    one.place(7, None)
    assert lanes.uncommitted() == {}
    assert lanes.uncommitted(again=True) == {ZERO: 5}
    lanes.acknowledging = True
    assert lanes.uncommitted() == {ONE: 7}
    assert lanes.uncommitted(again=True) == {ZERO: 5, ONE: 7}


def test_k17_a_replaced_lane_may_commit_lower() -> None:
    """K17: the positions of another topic of that name mean nothing for the new one."""
    lanes = Lanes(acknowledging=True)
    (lane,) = lanes.assign([ZERO], unbroken=True).new
    lane.place(100, 100)
    new = lanes.replace(lane)
    new.place(0, None)
    assert not lane.is_alive
    assert lanes.uncommitted() == {ZERO: 0}


def test_what_a_rebalance_waits_for() -> None:
    """A rebalance waits for what is in flight to settle and be committed; not for what rests, nor without outcomes."""
    lanes = Lanes(acknowledging=True)
    zero, one = held(lanes, ZERO, ONE)
    lanes.acknowledge({ZERO: 0, ONE: 0})
    assert lanes.are_settled
    hand_out(zero, 0)
    assert not lanes.are_settled
    zero.settle(0)
    assert not lanes.are_settled
    lanes.acknowledge({ZERO: 1})
    assert lanes.are_settled
    hand_out(one, 0)
    one.start_again(0, rests_until=NEVER)
    assert lanes.are_settled
    hand_out(zero, 1)
    lanes.acknowledging = False
    assert lanes.are_settled


def test_when_to_look_again() -> None:
    """The next moment at which a resting lane opens."""
    lanes = Lanes()
    zero, one = held(lanes, ZERO, ONE)
    assert lanes.closed_until(0.0) == NEVER
    zero.start_again(0, rests_until=5.0)
    one.start_again(0, rests_until=3.0)
    assert lanes.closed_until(0.0) == 3.0
    assert lanes.closed_until(4.0) == 5.0


class History(RuleBasedStateMachine):
    """Any history of one partition with gaps, against a model that remembers every record: nothing is skipped, nothing settled
    twice or out of order, and the commit is never beyond the first record that is not settled."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes(acknowledging=True)
        (self.lane,) = self.lanes.assign([ZERO], unbroken=True).new
        self.lane.place(0, None)
        self.log: list[int] = []
        self.end = 0
        self.buffered: deque[tuple[int, int]] = deque()
        self.in_flight: deque[int] = deque()
        self.done: list[int] = []
        self.commits = [0]

    @rule(gaps=st.lists(st.integers(0, 2), min_size=1, max_size=5), behind=st.integers(0, 2))
    def publish(self, gaps: list[int], behind: int) -> None:
        for gap in gaps:
            self.log.append(self.end + gap)
            self.end += gap + 1
        self.end += behind

    @precondition(lambda self: not self.lane.is_broken)
    @rule(count=st.integers(1, 4))
    def read(self, count: int) -> None:
        found = [offset for offset in self.log if offset >= self.lane.ahead][:count]
        if found:
            later = [offset for offset in self.log if offset > found[-1]]
            after = found[-1] + 1 if later else self.end
            self.lane.read(after)
            self.buffered.append((found[0], after))
        else:
            self.lane.skip_to(max(self.end, self.lane.ahead))

    @rule()
    def pull(self) -> None:
        if self.buffered and not self.lane.is_broken:
            first, after = self.buffered.popleft()
            batch = [offset for offset in self.log if first <= offset < after]
            self.lane.hand_out(batch[-1], after)
            self.in_flight += batch

    @rule()
    def drop_what_was_read(self) -> None:
        self.buffered.clear()
        self.lane.unread()

    @precondition(lambda self: self.in_flight)
    @rule(count=st.integers(1, 6))
    def settle(self, count: int) -> None:
        batch = [self.in_flight.popleft() for _ in range(min(count, len(self.in_flight)))]
        self.done += batch
        self.lane.settle(batch[-1])

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail(self) -> None:
        first = self.in_flight[0]
        self.lane.break_off()
        self.buffered.clear()
        self.lane.unread()
        self.in_flight.clear()
        self.lane.start_again(first, rests_until=0.0)

    @rule()
    def commit(self) -> None:
        offsets = self.lanes.uncommitted()
        self.commits += offsets.values()
        self.lanes.acknowledge(offsets)

    @rule(unbroken=st.booleans())
    def rebalance(self, unbroken: bool) -> None:
        change = self.lanes.assign([ZERO], unbroken=unbroken)
        if change.new:
            self.buffered.clear()
            self.in_flight.clear()
            start = self.commits[-1]
            self.done = [offset for offset in self.done if offset < start]
            (self.lane,) = change.new
            self.lane.place(start, start)

    @invariant()
    def nothing_is_skipped_or_out_of_order(self) -> None:
        assert self.done == self.log[: len(self.done)]
        waiting = [*self.in_flight, *(offset for first, after in self.buffered for offset in self.log if first <= offset < after)]
        assert self.done + waiting == self.log[: len(self.done) + len(waiting)]

    @invariant()
    def commits_grow_and_stay_behind(self) -> None:
        assert self.commits == sorted(self.commits)
        unsettled = self.log[len(self.done) :]
        assert not unsettled or self.commits[-1] <= unsettled[0]
        assert self.lane.settled <= self.lane.position <= self.lane.ahead  # type: ignore[operator]


History.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_history = pytest.mark.filterwarnings("default")(History.TestCase)
