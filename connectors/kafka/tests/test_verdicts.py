"""What follows from a lane's outcomes, without a broker."""

from __future__ import annotations

from types import SimpleNamespace

from aiokafka import TopicPartition
from headrace_kafka.lanes import Lane
from headrace_kafka.message import KafkaMessage
from headrace_kafka.verdicts import judge

from headrace import AdvanceItem, AdvanceOutcome

ACKED = AdvanceOutcome(acked=3, failed=0)
FAILED = AdvanceOutcome(acked=2, failed=1)
NOBODY = AdvanceOutcome(acked=0, failed=0)
REJECTED = AdvanceOutcome(acked=2, failed=0, rejected=1)
MIXED = AdvanceOutcome(acked=1, failed=1, rejected=1)


def lane_of(count: int) -> tuple[Lane, list[KafkaMessage]]:
    lane = Lane(TopicPartition("t", 0))
    lane.place(0, None)
    records = [SimpleNamespace(value=b"", key=None, headers=(), timestamp=1, offset=offset) for offset in range(count)]
    return lane, [KafkaMessage(record, lane.run) for record in records]  # type: ignore[arg-type]


def items(messages: list[KafkaMessage], *outcomes: AdvanceOutcome) -> list[AdvanceItem]:
    return [AdvanceItem(message, outcome) for message, outcome in zip(messages, outcomes, strict=True)]


def test_all_acked() -> None:
    """A clean batch is settled to its end, one outcome shared or each its own."""
    lane, messages = lane_of(3)
    for outcomes in ([ACKED] * 3, [AdvanceOutcome(1, 0), AdvanceOutcome(2, 0), AdvanceOutcome(1, 0)]):
        verdict = judge(items(messages, *outcomes), lane.run)
        assert (verdict.settled, verdict.failed, verdict.rejected, verdict.stale) == (2, None, [], 0)


def test_the_first_failure_ends_it() -> None:
    """What is behind a failed message is not looked at; nobody online and a mixed outcome are failures too."""
    lane, messages = lane_of(4)
    for outcome in (FAILED, NOBODY, MIXED):
        verdict = judge(items(messages, ACKED, REJECTED, outcome, REJECTED), lane.run)
        assert (verdict.settled, verdict.failed) == (1, 2)
        assert [message.offset for message, _ in verdict.rejected] == [1]


def test_nothing_before_a_failure() -> None:
    """A failure at the start settles nothing."""
    lane, messages = lane_of(2)
    verdict = judge(items(messages, FAILED, ACKED), lane.run)
    assert (verdict.settled, verdict.failed, verdict.rejected) == (None, 0, [])


def test_an_ended_run_is_ignored() -> None:
    """Messages of an ended run decide nothing, whatever became of them."""
    lane, old = lane_of(2)
    lane.start_again(0, rests_until=0.0)
    verdict = judge(items(old, ACKED, FAILED), lane.run)
    assert (verdict.settled, verdict.failed, verdict.stale) == (None, None, 2)
