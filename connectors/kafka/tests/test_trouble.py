"""Brokers that are away, stuck, or say no: each a clear line, and nothing lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from headrace_kafka import CONNECTOR, KafkaConfig, KafkaProducer

from headrace import Message, SourceMisconfigured, SourceUnavailable
from headrace.testing.brokers.process import free_port
from headrace.testing.waiting import eventually

pytestmark = pytest.mark.integration


async def test_k22_a_consumer_that_is_stuck_without_an_error_is_rebuilt(cluster: Any, caplog: Any) -> None:
    """K22: messages are there and none come: said, counted, and cured by a new consumer, which begins at the first unsettled."""
    config = cluster.config(cluster.topic(), watchdog_timeout=0.6)
    await cluster.publish(config.topics[0], [b"x"] * 3)
    driven = cluster.open(config)
    messages = await driven.next(3)
    await driven.advance(messages[:1])
    driven.producer._session._consumer._fetcher._fetch_task.cancel()  # as silent as a lost connection that looks alive
    await cluster.publish(config.topics[0], [b"y"])  # the fetch that is under way may bring this one
    await cluster.publish(config.topics[0], [b"z"])
    await eventually(lambda: driven.producer.stats()["rebuilds"] == 1)
    assert f"there are messages in {config.topics[0]}/0, and none come" in caplog.text
    await eventually(lambda: driven.lost == [(config.topics[0], 0)])
    driven.drop_stale()
    again = await driven.next(4)
    assert [message.offset for message in again] == [1, 2, 3, 4]
    await driven.advance(again)
    assert await cluster.committed(config) == 5
    await eventually(lambda: driven.producer.stats()["trouble"] is None)


async def test_k22_a_partition_that_rests_or_is_paused_is_not_stuck(cluster: Any) -> None:
    """K22: the watchdog leaves alone what is not being read on purpose."""
    config = cluster.config(cluster.topic(2), watchdog_timeout=0.5, max_poll_records=2)
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"x"] * 10, partition=partition)
    driven = cluster.open(config)
    messages = await driven.next(2)
    driven.producer.pause(driven.producer.get_advance_lane(messages[0]))
    driven.is_pulling.clear()
    await asyncio.sleep(2.0)
    assert driven.producer.stats()["rebuilds"] == 0
    assert driven.producer.stats()["lag"] != {}


@pytest.mark.timeout(150)  # two starts of a broker, on a machine that may be busy
async def test_a_broker_restart_loses_and_skips_nothing(own_cluster: Any) -> None:
    """A broker that is killed and comes back with its data: the same stream goes on, and every message is settled once. Its
    topic was missing at first, and made as it was asked for, by a broker that is set up so."""
    cluster = own_cluster({"auto.create.topics.enable": "true", "num.partitions": "2"})
    config = cluster.config("made", dead_letter_topic="made.dead", request_timeout=3.0, watchdog_timeout=3.0)
    driven = cluster.open(config)
    await eventually(lambda: driven.producer.stats()["positions"] == {"made/0": 0, "made/1": 0})
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"x"] * 10, partition=partition)
    await driven.advance(await driven.next(20))
    await asyncio.to_thread(cluster.server.kill)
    await eventually(lambda: driven.producer.stats()["trouble"], 30)
    await asyncio.to_thread(cluster.server.restart)
    for partition in (0, 1):
        await cluster.publish(config.topics[0], [b"y"] * 5, partition=partition)
    settled: dict[int, list[int]] = {0: [], 1: []}
    async with asyncio.timeout(40):
        while any(len(done) < 5 for done in settled.values()):
            (message,) = await driven.next(1, 40)
            try:
                await driven.advance([message])
            except SourceUnavailable:
                driven.messages.insert(0, message)
                continue
            settled[message.partition] += [message.offset] if message.run.is_current else []
    assert settled == {0: [10, 11, 12, 13, 14], 1: [10, 11, 12, 13, 14]}
    assert [await cluster.committed(config, partition) for partition in (0, 1)] == [15, 15]


async def test_a_broker_that_is_away_is_unavailable() -> None:
    """No broker at the address: `SourceUnavailable` that names the address and the option."""
    config = KafkaConfig(bootstrap_servers=f"127.0.0.1:{free_port()}", topics="t", group_id="g")
    producer = KafkaProducer(config)
    with pytest.raises(SourceUnavailable, match=f"bootstrap_servers.*{config.servers}"):
        await anext(producer.open_batches())
    await producer.aclose()


@pytest.mark.parametrize("option", ["topics", "dead_letter_topic"])
async def test_a_missing_topic_is_named(cluster: Any, option: str) -> None:
    """A topic that is not there, and that the brokers do not make: `SourceUnavailable` that names it and the option."""
    config = cluster.config(cluster.topic()).model_copy(update={option: ("lacking",) if option == "topics" else "lacking"})
    error = await cluster.open(config).failure()
    assert isinstance(error, SourceUnavailable)
    assert f"{option}: there is no topic lacking" in str(error)


async def test_a_stop_that_takes_too_long_leaves_nothing_running(cluster: Any) -> None:
    """Closing a producer that waits for its group ends in time, and no task of the client goes on behind it."""
    config = cluster.config(cluster.topic(), session_timeout=20.0)
    before = asyncio.all_tasks()
    driven = cluster.open(config)
    await eventually(lambda: driven.producer.stats()["positions"])
    driven.producer._session._consumer._coordinator.reset_generation()  # joins again, behind its own old membership
    await eventually(lambda: driven.producer.stats()["is_rebalancing"])
    async with asyncio.timeout(8):
        await driven.close()
    await eventually(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})


async def test_publish_and_read(cluster: Any) -> None:
    """The connector publishes what its own producer reads."""
    config = cluster.config(cluster.topic())
    sent = [Message(value=b"%d" % n, key=b"k", headers=(("h", b"1"),), id="", source="", timestamp=0.0) for n in range(3)]
    await CONNECTOR.publish(config, sent)
    messages = await cluster.open(config).next(3)
    assert [(message.value, message.key, message.headers) for message in messages] == [
        (message.value, message.key, message.headers) for message in sent
    ]


async def test_publishing_says_what_is_wrong(cluster: Any) -> None:
    """A missing topic, one that refuses the message, and a stream that names no single topic are told at once."""
    message = Message(value=b"x" * 5000, id="", source="", timestamp=0.0)
    with pytest.raises(SourceUnavailable, match="there is no topic lacking"):
        await CONNECTOR.publish(cluster.config("lacking"), [message])
    with pytest.raises(SourceMisconfigured, match=r"max\.message\.bytes"):
        await CONNECTOR.publish(cluster.config(cluster.topic(max_message_bytes="2000")), [message])
    with pytest.raises(SourceMisconfigured, match="exactly one topic"):
        await CONNECTOR.publish(cluster.config("one", "two"), [message])
