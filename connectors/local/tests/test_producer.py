"""What the local producer adds to the file: verdicts, backoff, the lease, and one thread per file."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest
from headrace_local import LocalConfig, LocalConnector, QueueFile
from headrace_local.handle import Handle
from headrace_local.producer import plan
from headrace_local.queue_file import Claim, Receipt

from headrace import AdvanceItem, AdvanceOutcome, Rejection, SourceMisconfigured, SourceUnavailable
from headrace.testing.conformance import ACKED, FAILED, NOBODY, REJECTED, Reader, message, messages

from .conftest import LocalHarness, MakeConfig


def items(*outcomes: AdvanceOutcome, key: bytes | None = b"k") -> list[AdvanceItem]:
    return [AdvanceItem(Receipt(number, 7, key, 1), outcome) for number, outcome in enumerate(outcomes)]


def no_delay(_: int) -> float:
    return 0.0


def test_x5_verdicts_of_an_unordered_lane_are_each_their_own() -> None:
    """Any failure, or nobody there, keeps a message; else a rejection buries it; else it is done."""
    mixed = AdvanceOutcome(1, 1, 1, (Rejection("b", "bad", 1),))
    settlement = plan(items(ACKED, FAILED, REJECTED, NOBODY, mixed, ACKED, key=None), no_delay, 100.0)
    assert settlement.done == [(0, 7), (5, 7)]
    assert settlement.late == [(1, 7, 100.0), (3, 7, 100.0), (4, 7, 100.0)]
    assert settlement.dead == [(2, 7, "suite: not an order")]


def test_r15_the_first_kept_message_of_a_lane_decides_for_all_behind_it() -> None:
    """Nothing behind it is settled, whatever was said of it."""
    settlement = plan(items(ACKED, REJECTED, NOBODY, ACKED, REJECTED, FAILED), no_delay, 100.0)
    assert settlement.done == [(0, 7)]
    assert [dead[:2] for dead in settlement.dead] == [(1, 7)]
    assert settlement.late == [(2, 7, 100.0)]


def test_a_dead_letter_says_who_rejected_it_and_why() -> None:
    """Several reasons are listed; none is said to be none."""
    outcome = AdvanceOutcome(0, 0, 2, (Rejection("audit", "no amount", 1), Rejection("eu", None, 2)))
    assert plan(items(outcome), no_delay, 0.0).dead[0][2] == "audit: no amount; eu: no reason given"
    assert plan(items(AdvanceOutcome(0, 0, 1)), no_delay, 0.0).dead[0][2] == "rejected"


async def test_s15_the_backoff_doubles_with_jitter_up_to_its_maximum(make_config: MakeConfig) -> None:
    """Each further failure waits twice as long, less up to a quarter, and never longer than `max_backoff`."""
    config = make_config(backoff=0.08, max_backoff=0.3)
    harness = LocalHarness(config)
    await harness.publish(messages(1))
    waits = []
    async with Reader(harness) as reader:
        (event,) = await reader.take()
        for _ in range(5):
            failed_at = asyncio.get_running_loop().time()
            await reader.settle([event], FAILED)
            (event,) = await reader.take()
            waits.append(event.at - failed_at)
    for wait, longest in zip(waits, (0.08, 0.16, 0.3, 0.3, 0.3), strict=True):
        assert 0.75 * longest <= wait < longest + 0.25, waits


async def test_a_message_survives_the_thousandth_failure(make_config: MakeConfig) -> None:
    """The doubling does not overflow."""
    config = make_config()
    await LocalConnector().publish(config, messages(1))
    with closing(sqlite3.connect(config.path)) as database, database:
        database.execute("UPDATE delivery SET failures = 5000")
    async with Reader(LocalHarness(config)) as reader:
        (event,) = await reader.take()
        assert event.message.delivery_count == 5001
        await reader.settle([event], FAILED)


async def test_the_lease_is_kept_while_nothing_is_settled(make_config: MakeConfig) -> None:
    """A consumer that holds a message for several visibility timeouts keeps it, though another waits for it."""
    harness = LocalHarness(make_config(visibility_timeout=0.3))
    harness.quiet = 1.0
    await harness.publish(messages(1))
    async with Reader(harness) as holder:
        (event,) = await holder.take()
        async with Reader(harness) as other:
            await other.expect_quiet("the message is in flight")
        await holder.settle([event], ACKED)
    assert await harness.remaining() == []


async def test_a_lost_lease_ends_the_stream_and_hurts_nobody(make_config: MakeConfig) -> None:
    """Who lost its lease is told, to open anew; what it says of its messages reaches nothing."""
    config = make_config(visibility_timeout=0.3)
    harness = LocalHarness(config)
    await harness.publish(messages(1))
    async with Reader(harness) as loser:
        (event,) = await loser.take()
        with closing(QueueFile(config.path)) as file:
            with closing(sqlite3.connect(config.path)) as database, database:
                database.execute("UPDATE consumer SET until = 0")
            winner = file.register(config.queue, 60)
            taken = file.claim(config.queue, winner, 1, after=0, limit=10, held=[], unordered=True)
            assert [got.value for got, _ in taken.events] == [b"m0"]
            error = await loser.error()
            assert isinstance(error, SourceUnavailable)
            assert "ran out" in str(error)
            await loser.producer.advance([AdvanceItem(event.payload, ACKED)])
            assert await harness.remaining() == [b"m0"]


async def test_what_was_claimed_before_a_pause_is_given_back(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """R17: a pause that comes while messages are being fetched holds them too, and later they come in order."""
    harness = LocalHarness(make_config())
    producer = harness.connector.create_producer(harness.config)
    loop = asyncio.get_running_loop()
    claim = QueueFile.claim

    def pausing(*args: Any, **options: Any) -> Claim:
        claimed = claim(*args, **options)
        if any(message.key == b"k" for message, _ in claimed.events):
            loop.call_soon_threadsafe(producer.pause, b"k")  # before the loop hears what was claimed
        return claimed

    monkeypatch.setattr(QueueFile, "claim", pausing)
    await harness.publish([*messages(3), message(b"free", None)])
    async with Reader(harness, producer) as reader:
        (free,) = await reader.take()
        assert free.value == b"free"
        await reader.expect_quiet("the lane is paused")
        assert (await producer.stats())["in_flight"] == 1
        monkeypatch.setattr(QueueFile, "claim", claim)
        producer.resume(b"k")
        again = await reader.take(3)
        assert [(event.value, event.message.delivery_count) for event in again] == [(b"m0", 1), (b"m1", 1), (b"m2", 1)]


async def test_advances_that_come_together_share_a_transaction(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand lanes settled at once cost a few transactions, not a thousand."""
    calls = 0
    settle = QueueFile.settle

    def counted(*args: object) -> None:
        nonlocal calls
        calls += 1
        settle(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueFile, "settle", counted)
    config = make_config()
    harness = LocalHarness(config)
    await harness.publish([message(b"x", f"{number}".encode()) for number in range(1000)])
    async with Reader(harness) as reader:
        events = await reader.take(1000)
        assert len({event.lane for event in events}) == 1000
        await asyncio.gather(*(reader.advance([AdvanceItem(event.payload, ACKED)]) for event in events))
    assert await harness.remaining() == []
    assert calls <= 3


async def test_publications_that_come_together_share_a_commit(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred callers at once wait for the disk a few times, and each knows that its messages are there."""
    calls = 0
    publish = QueueFile.publish

    def counted(*args: object) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.01)  # a slow disk
        publish(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueFile, "publish", counted)
    config = make_config()
    harness = LocalHarness(config)
    await asyncio.gather(*(harness.publish([message(f"{number}".encode())]) for number in range(100)))
    assert sorted(int(value or b"") for value in await harness.remaining()) == list(range(100))
    assert calls < 20


async def test_x19_a_message_that_cannot_be_stored_fails_alone(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with a reason; publications in the same commit go through."""
    monkeypatch.setattr("headrace_local.queue_file.MESSAGE_BYTES", 1000)
    harness = LocalHarness(make_config())
    results = await asyncio.gather(
        harness.publish([message(b"fine")]),
        harness.publish([message(b"x" * 2000)]),
        harness.publish([message(b"x", headers=(("\udcff", b""),))]),
        harness.publish([message(b"fine too")]),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [type(None), ValueError, TypeError, type(None)]
    assert "at most 1000" in str(results[1])
    assert await harness.remaining() == [b"fine", b"fine too"]


async def test_a_reason_that_is_no_text_does_not_keep_a_message(make_config: MakeConfig) -> None:
    """X19: a rejection may quote what it rejects: NUL, half a surrogate, a megabyte."""
    harness = LocalHarness(make_config())
    await harness.publish(messages(1))
    async with Reader(harness) as reader:
        (event,) = await reader.take()
        await reader.settle([event], AdvanceOutcome(0, 0, 1, (Rejection("audit", "bad \x00\udcff" + "x" * 1_000_000, 1),)))
    (letter,) = await harness.dead_letters()
    assert (letter.reason or "").startswith("audit: bad \ufffd?xxx")
    assert len(letter.reason or "") == 10_000


async def test_the_file_is_closed_when_its_last_user_goes(make_config: MakeConfig) -> None:
    """Users of one path share a handle, under any of its names; the last closes the file and ends the thread."""
    config = make_config()
    one, two = Handle.get(config.path), Handle.get(config.path.replace("/queue.db", "/./queue.db"))
    assert one is two
    await one.run(QueueFile.stats, "q")
    await one.aclose()
    await two.run(QueueFile.stats, "q")
    await two.aclose()
    with pytest.raises(RuntimeError):
        await two.run(QueueFile.stats, "q")
    again = Handle.get(config.path)
    assert again is not one
    await again.aclose()


async def test_opening_a_file_that_cannot_be_opened(make_config: MakeConfig) -> None:
    """The stream ends with the reason, and closing the producer works all the same."""
    harness = LocalHarness(make_config(path="/nonexistent/queue.db"))
    async with Reader(harness) as reader:
        assert isinstance(await reader.error(), SourceMisconfigured)


async def test_stats_of_an_open_producer(make_config: MakeConfig) -> None:
    """An open producer tells its queue's figures, a closed one none."""
    harness = LocalHarness(make_config())
    await harness.publish(messages(2))
    producer = harness.connector.create_producer(harness.config)
    assert await producer.stats() == {}
    async with Reader(harness, producer) as reader:
        await reader.take(2)
        stats = await producer.stats()
        assert (stats["in_flight"], stats["lag"]) == (2, 2)
    assert await producer.stats() == {}


async def test_a_producer_serves_one_poll(make_config: MakeConfig) -> None:
    """R1: opened twice, it says so."""
    harness = LocalHarness(make_config())
    async with Reader(harness) as reader:
        await harness.publish(messages(1))
        await reader.take()
        with pytest.raises(RuntimeError, match="one poll"):
            await anext(reader.producer.open_batches())


def test_the_config_names_what_is_wrong() -> None:
    """Unknown keys, impossible numbers, and a maximum below the minimum are refused."""
    with pytest.raises(ValueError, match="paht"):
        LocalConfig(paht="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="batch_size"):
        LocalConfig(path="x", batch_size=0)
    with pytest.raises(ValueError, match=r"max_backoff \(1\) must not be less than backoff \(2\)"):
        LocalConfig(path="x", backoff=2, max_backoff=1)


def test_check_compares_the_config_with_the_machine(make_config: MakeConfig) -> None:
    """A missing directory is a problem, memory a warning, a good path neither."""
    connector = LocalConnector()
    assert list(connector.check(make_config(), {})) == []
    (problem,) = connector.check(LocalConfig(path="/nonexistent/queue.db"), {})
    assert "no directory '/nonexistent'" in problem
    (warning,) = connector.check(LocalConfig(path=":memory:"), {})
    assert warning.startswith("warning: ")
