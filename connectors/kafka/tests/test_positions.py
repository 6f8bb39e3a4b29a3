"""Where a partition starts, and what happens when the group's position is not in it any more."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import codec

from headrace import AdvanceOutcome, SourceMisconfigured
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.integration


async def test_k13_an_aborted_record_triggers_nothing(cluster: Any) -> None:
    """K13: read_committed is the default: what a transaction aborted is never handed out, and is committed past."""
    config = cluster.config(cluster.topic())
    await cluster.publish_transaction(config.topics[0], [b"aborted"] * 3, commit=False)
    await cluster.publish_transaction(config.topics[0], [b"committed"], commit=True)
    await cluster.publish_transaction(config.topics[0], [b"aborted too"] * 3, commit=False)
    driven = cluster.open(config)
    messages = await driven.next(1)
    await driven.advance(messages)
    assert [message.value for message in messages] == [b"committed"]

    async def is_at_the_end() -> bool:
        return await cluster.committed(config) == 10  # seven records and three markers

    await eventually(is_at_the_end)
    assert not driven.messages
    dirty = cluster.open(config.model_copy(update={"isolation_level": "read_uncommitted", "group_id": f"{config.group_id}-2"}))
    assert len(await dirty.next(7)) == 7


@pytest.mark.parametrize(("reset", "first"), [("earliest", b"old"), ("latest", b"new")])
async def test_auto_offset_reset(cluster: Any, reset: str, first: bytes) -> None:
    """Without a position a group starts at the oldest message, or at the next new one."""
    config = cluster.config(cluster.topic(), auto_offset_reset=reset)
    await cluster.publish(config.topics[0], [b"old"] * 3)
    driven = cluster.open(config)
    await eventually(lambda: driven.producer.stats()["positions"])
    await cluster.publish(config.topics[0], [b"new"])
    (message,) = await driven.next(1)
    assert message.value == first


async def test_latest_is_looked_up_once(cluster: Any) -> None:
    """With `latest`, a partition that settled nothing has its start committed, so that a restart skips nothing."""
    config = cluster.config(cluster.topic(2), auto_offset_reset="latest")
    await cluster.publish(config.topics[0], [b"old"], partition=1)
    driven = cluster.open(config)
    await eventually(lambda: len(driven.producer.stats()["positions"]) == 2)
    await cluster.publish(config.topics[0], [b"new"], partition=0)
    await driven.advance(await driven.next(1))

    async def is_committed() -> bool:
        return await cluster.committed(config, 1) == 1

    await eventually(is_committed)
    await driven.close()
    await cluster.publish(config.topics[0], [b"meanwhile"], partition=1)
    again = cluster.open(config)
    assert [message.value for message in await again.next(1)] == [b"meanwhile"]


async def test_no_start_is_an_error_where_none_is_wanted(cluster: Any) -> None:
    """`auto_offset_reset: none` names the partition that the group has no position in."""
    config = cluster.config(cluster.topic(), auto_offset_reset="none")
    error = await cluster.open(config).failure()
    assert isinstance(error, SourceMisconfigured)
    assert f"no position in {config.topics[0]}/0" in str(error)


async def test_unacknowledged_mode_commits_nothing(cluster: Any) -> None:
    """A stream whose outcomes never come commits no position."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"x"] * 3)
    driven = cluster.open(config)
    await driven.next(3)
    await driven.close()
    assert await cluster.committed(config) is None


def test_every_compression_can_be_read() -> None:
    """What Kafka's producers compress with can be read with what is installed beside the connector."""
    assert codec.has_gzip()
    assert codec.has_snappy()
    assert codec.has_lz4()
    assert codec.has_zstd()


@pytest.mark.parametrize("compression", ["gzip", "lz4"])  # the others want libraries of a machine's own in the broker
async def test_compressed_messages_are_read(cluster: Any, compression: str) -> None:
    """A compressed batch comes as it was written."""
    config = cluster.config(cluster.topic())
    await cluster.publish_compressed(config.topics[0], b"x" * 10_000, compression)
    (message,) = await cluster.open(config).next(1)
    assert message.value == b"x" * 10_000


async def retained_from(cluster: Any, *, at: int, committed: int, **options: Any) -> Any:
    """A group at offset `committed` in a topic of ten whose messages before `at` are gone."""
    config = cluster.config(cluster.topic(), **options)
    await cluster.publish(config.topics[0], [b"%d" % n for n in range(10)])
    await cluster.set_offset(config, committed)
    await cluster.delete_records(config.topics[0], at)
    return config


async def test_k16_a_position_that_retention_deleted_stops_the_stream(cluster: Any) -> None:
    """K16, fail: the error says where the group was, what is gone and which option decides; the offset stays."""
    config = await retained_from(cluster, at=7, committed=3)
    error = await cluster.open(config).failure()
    assert isinstance(error, SourceMisconfigured)
    assert f"at offset 3 of {config.topics[0]}/0, but 4 messages before offset 7 are gone" in str(error)
    assert "on_offset_gone" in str(error)
    assert await cluster.committed(config) == 3


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [b"7", b"8", b"9", b"new"]), ("latest", [b"new"])])
async def test_k16_a_gap_is_reported_and_passed(cluster: Any, policy: str, expected: list[bytes], caplog: Any) -> None:
    """K16, earliest and latest: the gap is logged and counted, then reading goes on there."""
    config = await retained_from(cluster, at=7, committed=3, on_offset_gone=policy)
    driven = cluster.open(config)
    await eventually(lambda: driven.producer.stats()["positions_gone"] == 1)
    await cluster.publish(config.topics[0], [b"new"])
    messages = await driven.next(len(expected))
    assert [message.value for message in messages] == expected
    assert "4 messages before offset 7 are gone" in caplog.text
    await driven.advance(messages)
    assert await cluster.committed(config) == 11


async def test_k16_a_gap_that_opens_while_a_partition_is_paused(cluster: Any) -> None:
    """K16: retention that overtakes a paused partition is noticed when it goes on; what was in flight is lost."""
    config = cluster.config(cluster.topic(), on_offset_gone="earliest", max_poll_records=3)
    await cluster.publish(config.topics[0], [b"%d" % n for n in range(10)])
    driven = cluster.open(config)
    messages = await driven.next(3)
    lane = driven.producer.get_advance_lane(messages[0])
    driven.producer.pause(lane)
    await driven.advance(messages, {1: AdvanceOutcome(acked=0, failed=1)})
    await cluster.delete_records(config.topics[0], 7)
    driven.producer.resume(lane)
    driven.producer.pause(lane)  # drops what was fetched before the deletion
    driven.producer.resume(lane)
    await eventually(lambda: driven.lost)
    driven.drop_stale()
    messages = await driven.next(3)
    assert [message.value for message in messages] == [b"7", b"8", b"9"]
    assert driven.lost == [lane]
    await driven.advance(messages)
    assert await cluster.committed(config) == 10


async def test_k17_a_position_behind_the_end_is_detected(cluster: Any) -> None:
    """K17: committed 100, end 5: the topic is not the one the group knows. Said, and by policy stopped or begun anew; then the
    commits follow the new topic."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"%d" % n for n in range(5)])
    await cluster.set_offset(config, 100)
    stopped = cluster.open(config)
    error = await stopped.failure()
    await stopped.close()
    assert isinstance(error, SourceMisconfigured)
    assert "ends at 5: the topic was made anew" in str(error)
    driven = cluster.open(config.model_copy(update={"on_offset_gone": "earliest"}))
    messages = await driven.next(5)
    await driven.advance(messages)
    assert await cluster.committed(config) == 5


async def test_k17_a_topic_made_anew_under_a_running_stream(cluster: Any) -> None:
    """K17: a topic deleted and made again while the stream runs is read from its beginning, and no identity repeats."""
    config = cluster.config(cluster.topic(), on_offset_gone="earliest", metadata_max_age=0.3)
    await cluster.publish(config.topics[0], [b"old"] * 10)
    driven = cluster.open(config)
    old = await driven.next(10)
    await driven.advance(old)
    cluster.server.delete_topic(config.topics[0])
    cluster.server.create_topic(config.topics[0], 1, {})
    await cluster.publish(config.topics[0], [b"new"] * 3)
    new = await driven.next(3)
    assert [message.value for message in new] == [b"new"] * 3
    assert not {message.id for message in new} & {message.id for message in old}
    await driven.advance(new)
    assert await cluster.committed(config) == 3
