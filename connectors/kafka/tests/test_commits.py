"""What is committed, and when, on the real broker and on one that fails."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, CorruptRecordException, RecordTooLargeError

from headrace import AdvanceOutcome, SourceMisconfigured, SourceUnavailable
from headrace.testing.brokers.mock_kafka import Api, Fault
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.integration


async def test_a_restart_goes_on_behind_what_was_settled(cluster: Any) -> None:
    """Messages come in order with their identity; what was settled does not come again, what was not does."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"%d" % n for n in range(10)])
    driven = cluster.open(config)
    messages = await driven.next(10)
    assert [message.value for message in messages] == [b"%d" % n for n in range(10)]
    assert messages[3].id == f"{config.topics[0]}/0/3/{messages[3].timestamp_ms}"
    await driven.advance(messages[:7])
    await driven.close()
    again = cluster.open(config)
    assert [message.id for message in await again.next(3)] == [message.id for message in messages[7:]]


async def test_k6_the_commit_waits_for_the_first_unsettled(cluster: Any) -> None:
    """K6: offset 1 pending, the rest resolved: committed stays 1, then jumps to 100 in one call."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"x"] * 100)
    driven = cluster.open(config)
    messages = await driven.next(100)
    await driven.advance(messages[:1])
    assert await cluster.committed(config) == 1
    commits = driven.producer.stats()["commits"]
    await driven.advance(messages[1:])
    assert await cluster.committed(config) == 100
    assert driven.producer.stats()["commits"] == commits + 1


async def test_k7_commits_never_go_backwards(cluster: Any) -> None:
    """K7: the committed offset only grows, with calls repeated and a message given back in between."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"x"] * 30)
    driven = cluster.open(config)
    messages = await driven.next(30)
    seen = []
    for calls in [(0, 10), (0, 10), (5, 10), (10, 20), (0, 20)]:
        await driven.advance(messages[slice(*calls)])
        seen.append(await cluster.committed(config))
    await driven.advance(messages[20:], {22: AdvanceOutcome(acked=0, failed=1)})
    seen.append(await cluster.committed(config))
    await driven.advance(await driven.next(8))
    seen.append(await cluster.committed(config))
    assert seen == [10, 10, 10, 20, 20, 22, 30]


async def test_k10_delivery_order_decides_in_a_compacted_topic(cluster: Any) -> None:
    """K10: offsets 0, 3, 4, 9 are left of ten: all resolved commits 10."""
    topic = cluster.topic(cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="0")
    for key in b"abbbcddddd":
        await cluster.publish(topic, [b"x"], key=bytes([key]))
    await asyncio.sleep(0.3)  # a segment is closed by the next message after segment.ms, and only closed ones are compacted
    await cluster.publish(topic, [b"last"], key=b"e")

    async def is_compacted() -> bool:
        return [record.offset for record in await cluster.read(topic, 3)] == [0, 3, 4]

    await eventually(is_compacted, 40)
    config = cluster.config(topic)
    driven = cluster.open(config)
    messages = await driven.next(5)
    assert [message.offset for message in messages] == [0, 3, 4, 9, 10]
    await driven.advance(messages[:4])
    assert await cluster.committed(config) == 10
    await driven.advance(messages[4:])
    assert await cluster.committed(config) == 11


async def test_k14_unchanged_positions_are_committed_again(cluster: Any) -> None:
    """K14: an idle group's positions are renewed on a timer, unchanged; also by a process that settled nothing yet."""
    config = cluster.config(cluster.topic(), recommit_interval=0.3)
    await cluster.publish(config.topics[0], [b"x"] * 3)
    first = cluster.open(config)
    await first.advance(await first.next(3))
    await first.close()
    driven = cluster.open(config)
    await eventually(lambda: driven.producer.stats()["commits"] >= 3)
    assert await cluster.committed(config) == 3


async def test_k24_all_resolved_commits_the_end(cluster: Any) -> None:
    """K24: ten records of a transaction, all resolved: committed is the end, behind the transaction's marker, and lag 0."""
    config = cluster.config(cluster.topic(), watchdog_timeout=1.0)
    await cluster.publish_transaction(config.topics[0], [b"x"] * 10, commit=True)
    driven = cluster.open(config)
    await driven.advance(await driven.next(10))

    async def is_at_the_end() -> bool:
        return await cluster.committed(config) == 11  # ten records and a marker

    await eventually(is_at_the_end)
    await eventually(lambda: driven.producer.stats()["lag"] == {f"{config.topics[0]}/0": 0})
    await cluster.publish_transaction(config.topics[0], [b"y"] * 3, commit=False)

    async def is_past_the_aborted() -> bool:
        return await cluster.committed(config) == 15

    await eventually(is_past_the_aborted)
    assert not driven.messages


async def test_k3_nothing_is_committed_without_a_membership(cluster: Any) -> None:
    """K3: between losing the membership and the rebalance no commit is sent: the broker might take it for an administrator's."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"x"])
    driven = cluster.open(config)
    await driven.next(1)
    session = driven.producer._session
    session._consumer._coordinator.reset_generation()
    with pytest.raises(CommitFailedError, match="no member"):
        await session.commit({TopicPartition(config.topics[0], 0): 1})
    assert await cluster.committed(config) is None


async def test_records_that_a_failed_poll_took_out_are_read_again(cluster: Any) -> None:
    """aiokafka moves its positions before it hands records over: what is lost with an error in another partition comes again."""
    config = cluster.config(cluster.topic(2))
    driven = cluster.open(config)
    await eventually(lambda: len(driven.producer.stats()["positions"]) == 2)
    consumer = driven.producer._session._consumer
    getmany = consumer.getmany
    calls = failures = 0

    async def failing(*partitions: Any, **options: Any) -> Any:
        nonlocal calls, failures
        calls += 1
        if (records := await getmany(*partitions, **options)) and failures < 3:
            failures += 1
            raise CorruptRecordException
        return records

    consumer.getmany = failing
    await eventually(lambda: calls)
    await cluster.publish(config.topics[0], [b"x"] * 5, partition=0)
    assert [message.offset for message in await driven.next(5)] == [0, 1, 2, 3, 4]
    assert failures == 3


async def test_a_partition_whose_error_waits_is_not_passed(cluster: Any) -> None:
    """aiokafka moves on past a message that is too large before it raises: its position is not believed meanwhile."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"x"])
    driven = cluster.open(config)
    await driven.next(1)
    consumer, key = driven.producer._session._consumer, TopicPartition(config.topics[0], 0)
    assert consumer.position_of(key) == 1
    consumer._fetcher._set_error(key, RecordTooLargeError())
    assert consumer.position_of(key) is None
    assert isinstance(await driven.failure(), SourceMisconfigured)


async def test_k29_commits_are_coalesced(mock: Any) -> None:
    """K29: an idle lane commits at once; 10 000 events on four lanes then cost at most one request in 50 ms, for all lanes."""
    config = mock.config(mock.topic(4), max_poll_records=1000)
    for partition in range(4):
        await mock.publish(config.topics[0], [b"x"] * 2500, partition=partition)
    driven = mock.open(config)
    messages = await driven.next(10_000)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await driven.advance(messages[:1])
    assert loop.time() - began < 0.04, "the first waited for the interval"
    before = mock.server.count_requests(Api.OFFSET_COMMIT)
    began = loop.time()
    await asyncio.gather(*(driven.advance(messages[at : at + 20]) for at in range(0, 10_000, 20)))
    passed = loop.time() - began
    requests = mock.server.count_requests(Api.OFFSET_COMMIT) - before
    assert requests <= passed / 0.05 + 1
    assert [await mock.committed(config, partition) for partition in range(4)] == [2500] * 4


@pytest.mark.parametrize("fault", [Fault.REBALANCE_IN_PROGRESS, Fault.ILLEGAL_GENERATION, Fault.UNKNOWN_MEMBER_ID])
async def test_k3_a_commit_that_the_group_refuses_is_not_fatal(mock: Any, fault: Fault) -> None:
    """K3: REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID on a commit end nothing. A lane that is kept
    commits after the new assignment; one whose membership was lost starts anew from what is committed."""
    config = mock.config(mock.topic(), session_timeout=3.0)
    await mock.publish(config.topics[0], [b"x"] * 10)
    driven = mock.open(config)
    messages = await driven.next(10)
    await driven.advance(messages[:2])
    mock.server.fail_next(Api.OFFSET_COMMIT, fault)
    began = time.monotonic()
    await driven.advance(messages[2:5])
    waited = time.monotonic() - began
    if fault is Fault.REBALANCE_IN_PROGRESS:
        assert await mock.committed(config) == 5
        assert not driven.lost
        await driven.advance(messages[5:])
    else:
        assert waited < 2.0, "a lane is lost with the membership, not when there is a new one"
        again = await driven.next(8)
        assert driven.lost == [(config.topics[0], 0)]
        assert [message.offset for message in again] == list(range(2, 10))
        await driven.advance(messages[5:])
        assert await mock.committed(config) == 2, "the old lane's resolutions reach nothing"
        await driven.advance(again)
    assert await mock.committed(config) == 10
    assert driven.producer.stats()["commits_failed"] == 1


async def test_x7_a_broker_that_is_away_makes_advance_unavailable(mock: Any) -> None:
    """X7: `advance` says `SourceUnavailable` within its patience; the same call succeeds when the broker is back."""
    config = mock.config(mock.topic(), request_timeout=1.0)
    await mock.publish(config.topics[0], [b"x"] * 5)
    driven = mock.open(config)
    messages = await driven.next(5)
    mock.server.take_down()
    with pytest.raises(SourceUnavailable, match="position 5"):
        await driven.advance(messages)
    mock.server.bring_up()
    async with asyncio.timeout(20):
        while True:
            try:
                await driven.advance(messages)
            except SourceUnavailable:
                continue
            break
    assert await mock.committed(config) == 5
    assert not driven.lost


async def test_x7_a_hanging_commit_is_cancelled_and_tried_again(mock: Any) -> None:
    """X7: `advance` past its deadline is cancelled without harm, and is idempotent."""
    config = mock.config(mock.topic())
    await mock.publish(config.topics[0], [b"x"] * 5)
    driven = mock.open(config)
    messages = await driven.next(5)
    mock.server.delay(1.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await driven.advance(messages)
    mock.server.delay(0)
    await driven.advance(messages)
    assert await mock.committed(config) == 5
