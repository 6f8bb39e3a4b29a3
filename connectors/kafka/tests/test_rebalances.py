"""Partitions come and go: what is kept, what is dropped, and that nothing is skipped."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from headrace_kafka import KafkaProducer

from headrace import AdvanceItem, AdvanceOutcome, SourceMisconfigured
from headrace.runner.hosting import HostedProducer
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.integration


def lanes(driven: Any) -> set[int]:
    """The partitions that a producer has now."""
    if driven.producer.stats()["is_rebalancing"]:
        return set()
    return {int(name.rpartition("/")[2]) for name in driven.producer.stats()["positions"]}


async def two_members(cluster: Any, **options: Any) -> tuple[Any, Any, Any, list[Any], int, int]:
    """One member reads ten messages of each of two partitions, then a second one joins and takes one of them over.

    Returns the config, both, the first one's messages, the partition it kept and the one it lost.
    """
    config = cluster.config(cluster.topic(2), **options)
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"%d" % n for n in range(10)], partition=partition)
    first = cluster.open(config)
    messages = await first.next(20)
    for partition in (0, 1):
        await first.advance([message for message in messages if message.partition == partition][:2])
    second = cluster.open(config)
    await eventually(lambda: len(first.lost) == 1 and lanes(first) and lanes(second))
    (kept,) = lanes(first)
    return config, first, second, messages, kept, 1 - kept


async def test_k1_commits_after_a_revoke(cluster: Any) -> None:
    """K1: after a revoke the partition still ours is committed, the lost one is dropped and counted, and no error comes."""
    config, first, second, messages, kept, lost = await two_members(cluster)
    assert first.lost == [(config.topics[0], lost)]
    await first.advance(messages)
    assert await cluster.committed(config, kept) == 10
    assert await cluster.committed(config, lost) == 2
    stats = first.producer.stats()
    assert stats["lanes_lost"] == 1
    assert stats["stale"] == 10
    assert not first.messages, "the kept partition is not read again"
    assert [message.offset for message in await second.next(8)] == list(range(2, 10))


async def test_k4_a_late_resolution_does_not_touch_a_new_life(cluster: Any) -> None:
    """K4: a partition that was revoked and given back begins anew: late resolutions of its old life advance nothing."""
    config, first, second, messages, _, lost = await two_members(cluster)
    old = [message for message in messages if message.partition == lost]
    await second.close()
    again = await first.next(8)
    assert [(message.partition, message.offset) for message in again] == [(lost, n) for n in range(2, 10)]
    await first.advance(old)
    assert await cluster.committed(config, lost) == 2
    await first.advance(again[:3])
    assert await cluster.committed(config, lost) == 5


async def test_k5_after_a_lost_group_the_next_is_the_first_unsettled(cluster: Any) -> None:
    """K5: a member that the group threw out begins again at the first message that is not settled, never a later one."""
    config = cluster.config(cluster.topic(), session_timeout=1.0)
    await cluster.publish(config.topics[0], [b"x"] * 10)
    driven = cluster.open(config)
    messages = await driven.next(10)
    await driven.advance(messages[:4])
    time.sleep(2.0)  # noqa: ASYNC251  # no heartbeat of this loop gets through
    again = await driven.next(6)
    assert driven.lost == [(config.topics[0], 0)]
    assert [message.offset for message in again] == [4, 5, 6, 7, 8, 9]
    await driven.advance(messages[4:])
    assert await cluster.committed(config) == 4
    await driven.advance(again)
    assert await cluster.committed(config) == 10


async def test_k18_pauses_outlive_a_rebalance(cluster: Any) -> None:
    """K18: what was paused hands out nothing after a rebalance that keeps it, and goes on where it was when it is resumed."""
    config = cluster.config(cluster.topic(), metadata_max_age=0.3)
    topic = config.topics[0]
    await cluster.publish(topic, [b"x"] * 3)
    driven = cluster.open(config)
    messages = await driven.next(3)
    lane = driven.producer.get_advance_lane(messages[0])
    driven.producer.pause(lane)
    await cluster.add_partitions(topic, 2)
    await eventually(lambda: lanes(driven) == {0, 1})
    await cluster.publish(topic, [b"y"] * 3, partition=0)
    await cluster.publish(topic, [b"y"], partition=1)
    assert [message.partition for message in await driven.next(1)] == [1]
    await asyncio.sleep(0.5)
    assert not driven.messages
    driven.producer.resume(lane)
    assert [message.offset for message in await driven.next(3)] == [3, 4, 5]
    assert not driven.lost


async def test_k19_membership_is_kept_while_nothing_is_pulled(cluster: Any) -> None:
    """K19: everything paused, and nothing pulled, for longer than `max_poll_interval`: still a member, and nothing is lost."""
    config = cluster.config(cluster.topic(2), max_poll_interval=1.0, session_timeout=1.0, max_poll_records=5)
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"x"] * 50, partition=partition)
        await cluster.set_offset(config, 0, partition)  # else aiokafka counts the error it begins with as a poll without end
    driven = cluster.open(config)
    driven.is_pulling.clear()  # one batch is pulled; the next waits in the producer
    messages = await driven.next(5)
    lane = driven.producer.get_advance_lane(messages[0])
    driven.producer.pause()
    driven.producer.pause(lane)
    await asyncio.sleep(3.0)
    assert driven.producer.stats()["lanes_lost"] == 0
    driven.is_pulling.set()
    driven.producer.resume()
    driven.producer.resume(lane)
    messages += await driven.next(95)
    await driven.advance(messages)
    assert [await cluster.committed(config, partition) for partition in (0, 1)] == [50, 50]
    assert not driven.lost


async def test_a_pause_holds_what_a_poll_under_way_brings(cluster: Any) -> None:
    """What comes for a partition that was paused while the poll was waiting is read again after the pause, in order."""
    config = cluster.config(cluster.topic(2))
    await cluster.publish(config.topics[0], [b"x"], partition=0)
    driven = cluster.open(config)
    (message,) = await driven.next(1)
    lane = driven.producer.get_advance_lane(message)
    for number in range(5):
        driven.producer.pause(lane)
        await cluster.publish(config.topics[0], [b"%d" % number], partition=0)
        await asyncio.sleep(0.15)
        assert not driven.messages
        driven.producer.resume(lane)
        (message,) = await driven.next(1)
        assert message.value == b"%d" % number


async def test_k20_membership_is_kept_while_python_code_burns_cpu(cluster: Any) -> None:
    """K20, the connector's part: in a thread of its own, the consumer stays a member while another thread runs pure Python for
    longer than the session timeout."""
    config = cluster.config(cluster.topic(), session_timeout=1.0)
    await cluster.publish(config.topics[0], [b"x"] * 10)
    hosted = HostedProducer(lambda: KafkaProducer(config), name="k20")
    batches = hosted.open_batches()
    try:
        batch = await anext(batches)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            sum(range(1000))
        await hosted.advance([AdvanceItem(payload, AdvanceOutcome(acked=1, failed=0)) for _, payload in batch])
        assert await cluster.committed(config) == len(batch)
        assert hosted.hosted.stats()["lanes_lost"] == 0
    finally:
        await batches.aclose()
        await hosted.aclose()


async def test_k21_a_revoke_waits_for_pending_messages_a_bounded_time(cluster: Any) -> None:
    """K21: with messages that never resolve, a joining member gets its partition after the grace, while the rest is read on."""
    began = time.monotonic()
    config, first, _, _, kept, _ = await two_members(cluster, rebalance_grace=0.5)
    assert time.monotonic() - began < 10
    await cluster.publish(config.topics[0], [b"new"], partition=kept)
    assert [message.value for message in await first.next(1)] == [b"new"]


async def test_k21_what_settles_within_the_grace_is_committed_before_the_partition_goes(cluster: Any) -> None:
    """K21: a revoke waits no longer than it must: once the pending messages are settled, the next owner starts behind."""
    config = cluster.config(cluster.topic(2), rebalance_grace=15.0)
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"x"] * 10, partition=partition)
    first = cluster.open(config)
    messages = await first.next(20)
    await first.advance(messages[:1])
    began = time.monotonic()
    second = cluster.open(config)
    await eventually(lambda: first.producer.stats()["is_rebalancing"])
    await first.advance(messages[1:])
    await eventually(lambda: lanes(first) and lanes(second))
    assert time.monotonic() - began < 10
    assert [await cluster.committed(config, partition) for partition in (0, 1)] == [10, 10]
    await cluster.publish(config.topics[0], [b"new"], partition=lanes(second).pop())
    assert [message.value for message in await second.next(1)] == [b"new"]


async def test_k26_two_members_with_one_instance_id_are_told(cluster: Any) -> None:
    """K26: two replicas with one `group.instance.id` push each other out: the error names the id and the option."""
    config = cluster.config(cluster.topic(), group_instance_id="same")
    first, second = cluster.open(config), cluster.open(config)
    done, _ = await asyncio.wait(
        [asyncio.create_task(first.failure(30)), asyncio.create_task(second.failure(30))], return_when=asyncio.FIRST_COMPLETED
    )
    error = done.pop().result()
    assert isinstance(error, SourceMisconfigured)
    assert "group_instance_id 'same-" in str(error)


async def test_k26_a_static_member_keeps_its_partitions_over_a_restart(cluster: Any) -> None:
    """A replica with an id of its own that restarts within the session timeout has its partitions back, nobody rebalances."""
    config = cluster.config(cluster.topic(2))
    named = [config.model_copy(update={"group_instance_id": f"{name}-{{hostname}}"}) for name in "ab"]
    first, second = cluster.open(named[0]), cluster.open(named[1])
    await eventually(lambda: len(lanes(first)) == len(lanes(second)) == 1)
    had, lost = lanes(second), len(first.lost)
    await second.close()
    again = cluster.open(named[1])
    await eventually(lambda: lanes(again) == had)
    assert len(first.lost) == lost


async def test_lanes_of_new_partitions_are_read(cluster: Any) -> None:
    """Partitions added to a topic are found within `metadata_max_age` and read from their beginning."""
    config = cluster.config(cluster.topic(), metadata_max_age=0.3)
    driven = cluster.open(config)
    await eventually(lambda: lanes(driven) == {0})
    await cluster.add_partitions(config.topics[0], 2)
    await cluster.publish(config.topics[0], [b"new"], partition=1)
    (message,) = await driven.next(1)
    assert message.partition == 1
    assert not driven.lost


async def test_topics_are_found_by_pattern(cluster: Any) -> None:
    """A pattern matches whole names; a topic that is made later is found, and starts at its beginning."""
    config = cluster.config(topic_pattern=rf"{(name := cluster.topic()).replace('.', '[.]')}(-more)?", metadata_max_age=0.3)
    other = cluster.server.create_topic(f"{name}-moreover")
    await cluster.publish(other, [b"not this"])
    await cluster.publish(name, [b"1"])
    driven = cluster.open(config)
    assert [message.value for message in await driven.next(1)] == [b"1"]
    more = cluster.server.create_topic(f"{name}-more")
    await cluster.publish(more, [b"2"])
    assert [message.value for message in await driven.next(1)] == [b"2"]
