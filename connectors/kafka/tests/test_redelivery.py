"""What each verdict does to the partition: the mixed-outcome table, going back, and dead letters."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import Any

import pytest

from headrace import AdvanceItem, AdvanceOutcome, Rejection, SourceMisconfigured, SourceUnavailable
from headrace.testing.brokers.mock_kafka import Api, Fault
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.integration

REJECTION = Rejection("audit", "no amount", 2)
FAILED = AdvanceOutcome(acked=1, failed=1)
NOBODY = AdvanceOutcome(acked=0, failed=0)
REJECTED = AdvanceOutcome(acked=1, failed=0, rejected=1, rejections=(REJECTION,))
REJECTED_BY_ALL = AdvanceOutcome(acked=0, failed=0, rejected=1, rejections=(REJECTION,))
MIXED = AdvanceOutcome(acked=1, failed=1, rejected=1, rejections=(REJECTION,))


@pytest.mark.parametrize(
    ("outcome", "committed", "dead"),
    [
        (AdvanceOutcome(acked=1, failed=0), 3, 0),
        (FAILED, 1, 0),
        (NOBODY, 1, 0),
        (REJECTED, 3, 1),
        (REJECTED_BY_ALL, 3, 1),
        (MIXED, 1, 0),
    ],
    ids=["acked", "failed", "nobody online", "rejected", "rejected by all", "acked, rejected and failed"],
)
async def test_x5_mixed_outcomes(cluster: Any, outcome: AdvanceOutcome, committed: int, dead: int) -> None:
    """X5: any failed, or nobody there: the message comes again; else any rejected: a dead letter; else it is settled."""
    config = cluster.config(cluster.topic(), dead_letter_topic=cluster.topic())
    await cluster.publish(config.topics[0], [b"0", b"1", b"2"])
    driven = cluster.open(config)
    messages = await driven.next(3)
    await driven.advance(messages, {1: outcome})
    assert await cluster.committed(config) == committed
    assert driven.producer.stats()["dead_letters"] == dead
    if committed == 1:
        again = await driven.next(2)
        assert [message.id for message in again] == [message.id for message in messages[1:]]
        await driven.advance(again)
        assert await cluster.committed(config) == 3
    assert not driven.messages
    assert not driven.lost


async def test_k8_a_failure_breaks_the_partition_until_it_came_again(cluster: Any) -> None:
    """K8, the connector's part: 5 fails, 6 and 7 came in a later batch: committed stays 5, what resolves of the old run changes
    nothing, and 5, 6, 7 come again in this order."""
    config = cluster.config(cluster.topic(), redelivery_backoff=0.3)
    await cluster.publish(config.topics[0], [b"x"] * 6)
    driven = cluster.open(config)
    messages = await driven.next(6)
    await cluster.publish(config.topics[0], [b"x"] * 2)
    later = await driven.next(2)
    await driven.advance(messages, {5: FAILED})
    assert await cluster.committed(config) == 5
    await driven.advance(later)
    assert await cluster.committed(config) == 5
    assert driven.producer.stats()["stale"] == 2
    again = await driven.next(3)
    assert [message.offset for message in again] == [5, 6, 7]
    await driven.advance(again[:1])
    await driven.advance(again[1:])
    assert await cluster.committed(config) == 8


async def test_other_lanes_go_on_while_one_rests(cluster: Any) -> None:
    """A partition that rests after a failure holds up no other."""
    config = cluster.config(cluster.topic(2), redelivery_backoff=30.0)
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"x"], partition=partition)
    driven = cluster.open(config)
    for message in await driven.next(2):
        await driven.advance([message], {0: FAILED} if message.partition == 0 else None)
    await cluster.publish(config.topics[0], [b"new"], partition=1)
    (message,) = await driven.next(1)
    await driven.advance([message])
    assert await cluster.committed(config, 1) == 2
    assert not driven.messages


async def test_x6_redelivery_is_never_a_hot_loop(cluster: Any) -> None:
    """X6: with nobody online a message is held with a backoff that grows, and nothing is committed past it."""
    config = cluster.config(cluster.topic(), redelivery_backoff=0.1)
    await cluster.publish(config.topics[0], [b"x"] * 3)
    driven = cluster.open(config)
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(6):
        messages = await driven.next(3)
        times.append(loop.time())
        await driven.advance(messages, dict.fromkeys(range(3), NOBODY))
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait >= 0.05 * 2**n for n, wait in enumerate(waits)), waits
    assert not await cluster.committed(config)
    assert driven.producer.stats()["redeliveries"] == 6


async def test_events_read_ahead_of_a_failure_are_not_handed_out(cluster: Any) -> None:
    """Nothing of the old run is handed out once `advance` carried the failed message, be it pulled late or read ahead."""
    config = cluster.config(cluster.topic(), max_poll_records=10, redelivery_backoff=0.3)
    await cluster.publish(config.topics[0], [b"x"] * 100)
    driven = cluster.open(config)
    driven.is_pulling.clear()
    messages = await driven.next(10)
    await driven.advance(messages, {4: FAILED})
    seen = len(driven.messages)
    driven.is_pulling.set()
    again = await driven.next(96)
    assert seen == 0
    assert [message.offset for message in again] == list(range(4, 100))


async def test_a_dead_letter_repeats_the_message_and_says_where_it_came_from(cluster: Any) -> None:
    """A dead letter has the original bytes, key and headers, and for each rejection who, why and on which attempt."""
    config = cluster.config(cluster.topic(), dead_letter_topic=cluster.topic())
    headers = [("h", b"1"), ("h", b"2"), ("empty", None)]
    await cluster.publish(config.topics[0], [b"\xff not json"], key=b"k", headers=headers, timestamp_ms=1_700_000_000_123)
    driven = cluster.open(config)
    (message,) = await driven.next(1)
    outcome = AdvanceOutcome(0, 0, 2, (REJECTION, Rejection("other", None, 1)))
    await driven.advance([message], {0: outcome})
    (record,) = await cluster.read(config.dead_letter_topic, 1)
    assert (record.value, record.key) == (b"\xff not json", b"k")
    assert record.headers[:3] == tuple(headers)
    told = [header for header in record.headers[3:] if header[0] != "headrace-time"]
    assert told == [
        ("headrace-topic", config.topics[0].encode()),
        ("headrace-partition", b"0"),
        ("headrace-offset", b"0"),
        ("headrace-timestamp", b"1700000000123"),
        ("headrace-trigger", b"audit"),
        ("headrace-reason", b"no amount"),
        ("headrace-attempts", b"2"),
        ("headrace-trigger", b"other"),
        ("headrace-reason", b""),
        ("headrace-attempts", b"1"),
    ]
    assert record.timestamp > 1_700_000_000_123, "the dead letter's own retention begins now"


async def test_k25_nulls_and_repeated_headers_are_legal(cluster: Any) -> None:
    """K25: a null value, a null key, both, invalid JSON and repeated headers come through, and may be dead letters."""
    config = cluster.config(cluster.topic(), dead_letter_topic=cluster.topic())
    await cluster.publish(config.topics[0], [None], key=b"tombstone")
    await cluster.publish(config.topics[0], [b"{"], headers=[("a", b"1"), ("a", None)])
    await cluster.publish_raw(config.topics[0], key=None, value=None)
    driven = cluster.open(config)
    messages = await driven.next(3)
    assert [(message.key, message.value) for message in messages] == [(b"tombstone", None), (None, b"{"), (None, None)]
    assert messages[1].headers == (("a", b"1"), ("a", None))
    for message in messages:
        with pytest.raises(ValueError, match=r"null|JSON|unexpected end"):
            message.json()
    assert [message.byte_size for message in messages] == [9, 4, 0]
    await driven.advance(messages, dict.fromkeys(range(3), REJECTED))
    assert await cluster.committed(config) == 3
    letters = await cluster.read(config.dead_letter_topic, 3)
    assert [(letter.key, letter.value) for letter in letters] == [(b"tombstone", None), (None, b"{"), (None, None)]


async def test_k27_a_dead_letter_topic_may_have_fewer_partitions(cluster: Any) -> None:
    """K27: no partition is pinned: a message of partition 3 becomes a dead letter in a topic of one."""
    config = cluster.config(cluster.topic(4), dead_letter_topic=cluster.topic(1))
    await cluster.publish(config.topics[0], [b"x"], partition=3)
    driven = cluster.open(config)
    await driven.advance(await driven.next(1), {0: REJECTED})
    assert await cluster.committed(config, 3) == 1
    assert len(await cluster.read(config.dead_letter_topic, 1)) == 1


async def test_k27_nothing_is_committed_while_the_dead_letter_topic_refuses(cluster: Any) -> None:
    """K27: a dead letter that its topic refuses (too large) is named, and its position is not committed. The next is sent."""
    config = cluster.config(cluster.topic(), dead_letter_topic=cluster.topic(max_message_bytes="2000"))
    await cluster.publish(config.topics[0], [b"small", b"x" * 5000, b"small"])
    driven = cluster.open(config)
    messages = await driven.next(3)
    await driven.advance(messages[:1], {0: REJECTED})
    with pytest.raises(SourceMisconfigured, match=r"max\.message\.bytes"):
        await driven.advance(messages[1:2], {1: REJECTED})
    assert await cluster.committed(config) == 1
    await driven.advance(messages[1:], {2: REJECTED})
    assert await cluster.committed(config) == 3
    assert driven.producer.stats()["dead_letters"] == 2


async def test_k27_a_dead_letter_is_sent_once_however_often_the_commit_fails(mock: Any) -> None:
    """A batch whose dead letters were sent, and whose commit then failed, sends none of them again."""
    config = mock.config(mock.topic(), dead_letter_topic=mock.topic(), request_timeout=1.0)
    await mock.publish(config.topics[0], [b"%d" % n for n in range(5)])
    driven = mock.open(config)
    messages = await driven.next(5)
    others = dict.fromkeys(range(5), REJECTED)
    mock.server.fail_next(Api.OFFSET_COMMIT, *[Fault.GROUP_AUTHORIZATION_FAILED] * 2)
    for _ in range(2):
        with pytest.raises(SourceMisconfigured, match="group_id"):
            await driven.advance(messages, others)
    await driven.advance(messages, others)
    assert await mock.committed(config) == 5
    assert driven.producer.stats()["dead_letters"] == 5
    assert [letter.value for letter in await mock.read(config.dead_letter_topic, 5)] == [b"%d" % n for n in range(5)]


async def test_k27_a_dead_letter_topic_that_is_away_is_waited_for(mock: Any) -> None:
    """K27: while the broker takes no dead letters `advance` says `SourceUnavailable`; later none is sent twice."""
    config = mock.config(mock.topic(), dead_letter_topic=mock.topic(), request_timeout=1.0)
    await mock.publish(config.topics[0], [b"x"])
    driven = mock.open(config)
    messages = await driven.next(1)
    mock.server.fail_next(Api.PRODUCE, *[Fault.NOT_LEADER] * 15)
    with pytest.raises(SourceUnavailable, match="dead-letter topic"):
        await driven.advance(messages, {0: REJECTED})
    assert await mock.committed(config) != 1
    mock.server.clear_faults(Api.PRODUCE)
    await driven.advance(messages, {0: REJECTED})
    assert await mock.committed(config) == 1
    assert len(await mock.read(config.dead_letter_topic, 1)) == driven.producer.stats()["dead_letters"] == 1


async def test_without_a_dead_letter_topic_a_rejected_message_is_settled(cluster: Any) -> None:
    """Headrace's own store has the dead letter; the broker is told that the message is done with."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"x"])
    driven = cluster.open(config)
    await driven.advance(await driven.next(1), {0: REJECTED})
    assert await cluster.committed(config) == 1


async def test_any_history_of_verdicts_settles_each_message_in_order(cluster: Any) -> None:
    """Random verdicts on random batches over three partitions: each partition's messages are settled in order, none is skipped,
    each rejected one is a dead letter once, and in the end everything is committed."""
    choice = random.Random(7)
    config = cluster.config(cluster.topic(3), dead_letter_topic=cluster.topic(), redelivery_backoff=0.01, max_poll_records=20)
    for partition in range(3):
        await cluster.publish(config.topics[0], [b"x"] * 60, partition=partition)
    driven = cluster.open(config)
    settled: dict[int, list[int]] = {0: [], 1: [], 2: []}
    rejected: set[str] = set()
    pending: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    while any(len(done) < 60 for done in settled.values()):
        for message in await driven.next(min(1, len(driven.messages))):
            pending[message.partition].append(message)
        await eventually(lambda: driven.messages or any(pending.values()))
        for partition, messages in pending.items():
            batch = messages[: choice.randint(1, 15)]
            if not batch or choice.random() < 0.5:
                continue
            outcomes = choice.choices([AdvanceOutcome(1, 0), REJECTED, FAILED, NOBODY], [80, 10, 3, 2], k=len(batch))
            await driven.producer.advance([AdvanceItem(*pair) for pair in zip(batch, outcomes, strict=True)])
            del messages[: len(batch)]
            for message, outcome in zip(batch, outcomes, strict=True):
                if outcome in (FAILED, NOBODY):
                    pending[partition] = []
                    driven.messages = [later for later in driven.messages if later.partition != partition]
                    break
                settled[partition].append(message.offset)
                if outcome is REJECTED:
                    rejected.add(message.id)
    assert settled == {partition: list(range(60)) for partition in range(3)}
    assert [await cluster.committed(config, partition) for partition in range(3)] == [60] * 3
    assert driven.producer.stats()["dead_letters"] == len(rejected) > 0
    assert driven.producer.stats()["redeliveries"] > 0
