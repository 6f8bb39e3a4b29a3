"""Triggers on a stream: units, retries on the event in hand, dead letters, restarts. The real engine in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.connector import Message
from headrace.errors import AckTimeout, SourceMisconfigured, StreamError, SubscriberOverflow
from headrace.runner import Phase
from headrace.store import TriggerState
from headrace.streams.contract import SharedStreamProducer
from headrace.streams.subscription import reject_shared_stream_event
from headrace.testing.virtual_time import in_virtual_time
from headrace.triggers.base import TriggerEvent
from tests.unit.runner.fakes import Stage, echo, skip, text


@in_virtual_time
async def test_one_unit_a_delivery_is_stored_and_then_the_broker_is_told() -> None:
    """What a filter derives from one message is one unit; when it is stored the message is settled."""
    stage = Stage()

    async def twice(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield TriggerEvent(text(message), dedupe_key="k")
            yield TriggerEvent([text(message)])

    stage.add("a", twice)
    async with stage.running():
        stage.publish("1", "2", key="p0")
        await stage.until(lambda: not stage.left)
    first, second = stage.store.units
    assert [event.payload for event in first.events] == ["1", ["1"]]
    assert (first.message_id, first.stream, first.lane, first.published_at) == ("orders/0", "orders", "p0", 0.0)
    assert [event.payload for event in second.events] == ["2", ["2"]]


@in_virtual_time
async def test_x4_all_subscribers_skip() -> None:
    """X4: acked without a row."""
    stage = Stage()
    stage.add("a", skip)
    stage.add("b", skip)
    async with stage.running():
        stage.publish("1", "2")
        await stage.until(lambda: not stage.left)
    assert stage.store.units == []


@in_virtual_time
async def test_x2_the_store_fails_for_one_trigger_and_not_for_the_other() -> None:
    """X2: no ack until B's is stored; on timeout B alone fails; A's rows are not doubled by the redelivery."""
    stage = Stage(ack_timeout=10.0)
    stage.add("a", echo)
    stage.add("b", echo)
    async with stage.running():
        stage.writer.withheld = {"b"}
        stage.publish("1")
        await stage.until(lambda: stage.store.payloads("a"))
        await asyncio.sleep(5)
        assert stage.left == ["1"]
        await stage.until(lambda: stage.observer.failed)
        assert [name for name, _ in stage.observer.failed] == ["b"]
        assert isinstance(stage.observer.failed[0][1], AckTimeout)
        stage.writer.withheld = set()
        stage.writer.write()
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1"]
    assert stage.store.payloads("b") == ["1"]
    assert stage.store.attempts.counts == {}  # the store was late, not the filter


@in_virtual_time
async def test_x10_a_filter_that_raises_gets_the_event_again_without_leaving() -> None:
    """X10: the same event again, in order, after a backoff; nobody else sees anything again; what it derived counts once."""
    stage = Stage()
    seen_by_a: list[str] = []
    seen_by_b: list[str] = []

    async def shaky(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            seen_by_a.append(text(message))
            yield TriggerEvent(f"{text(message)} try {seen_by_a.count(text(message))}")
            if text(message) == "2" and seen_by_a.count("2") < 3:
                raise ValueError("not yet")

    async def steady(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            seen_by_b.append(text(message))
            if False:
                yield TriggerEvent(None)

    stage.add("a", shaky)
    stage.add("b", steady)
    async with stage.running() as runner:
        stage.publish("1", "2", "3", key="p0")
        await stage.until(lambda: not stage.left)
        assert runner.status().triggers["a"].restarts == 2
    assert seen_by_a == ["1", "2", "2", "2", "3"]
    assert seen_by_b == ["1", "2", "3"]
    assert stage.store.payloads("a") == ["1 try 1", "2 try 3", "3 try 1"]
    assert stage.observer.attempts == [("a", 1), ("a", 2)]
    assert stage.observer.failed == []
    assert stage.life.count("a cleanup") == 3  # each instance, on its exit


@in_virtual_time
async def test_x10_after_its_attempts_the_event_is_a_dead_letter_and_the_trigger_goes_on() -> None:
    """X10: a dead letter with the traceback, bound to the event; the stream lives, the other trigger has its own."""
    stage = Stage()

    async def poisoned(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            if text(message) == "2":
                yield TriggerEvent("half")
                raise ValueError("cannot parse 2")
            yield TriggerEvent(text(message))

    stage.add("a", poisoned, max_attempts=3)
    stage.add("b", echo)
    async with stage.running():
        stage.publish("1", "2", "3", key="p0")
        await stage.until(lambda: not stage.left)
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert unit.dead.message is not None
    assert (unit.message_id, unit.dead.cause, unit.dead.attempts) == ("orders/1", "failed", 3)
    assert (unit.dead.reason, unit.dead.message.value) == ("ValueError('cannot parse 2')", b"2")
    assert 'raise ValueError("cannot parse 2")' in (unit.dead.traceback or "")
    assert stage.store.payloads("a") == ["1", "3"]
    assert stage.store.payloads("b") == ["1", "2", "3"]
    assert stage.observer.dead_letters == [("a", "failed")]


@in_virtual_time
async def test_x10_the_broker_waits_for_the_dead_letter() -> None:
    """X10, R7: a dead letter is bound like a derived event: not stored, not acked."""
    stage = Stage()

    async def poisoned(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            raise ValueError(text(message))
            yield TriggerEvent(None)

    stage.add("a", poisoned, max_attempts=1)
    async with stage.running():
        stage.writer.withheld = {"a"}
        stage.publish("1", "2")
        await stage.until(lambda: len(stage.writer.pending) == 2)
        assert stage.left == ["1", "2"]
        stage.writer.withheld = set()
        stage.writer.write()
        await stage.until(lambda: not stage.left)
    assert len(stage.store.dead("a")) == 2


@in_virtual_time
async def test_x18_attempts_survive_a_restart() -> None:
    """X18: a new runner on the same store goes on counting where the last one stopped."""
    stage = Stage()

    async def poisoned(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            raise ValueError(text(message))
            yield TriggerEvent(None)

    stage.add("a", poisoned, max_attempts=4)
    async with stage.running():
        stage.publish("1")
        await stage.until(lambda: stage.store.attempts.counts.get(("a", "orders/0")) == 2)
    assert stage.left == ["1"]
    async with stage.running():
        await stage.until(lambda: not stage.left)
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert unit.dead.attempts == 4
    assert [attempt for _, attempt in stage.observer.attempts] == [1, 2, 3, 4]


@in_virtual_time
async def test_attempts_are_counted_in_memory_while_the_store_is_away() -> None:
    """A store that cannot count does not make a filter loop for ever."""
    stage = Stage()

    async def poisoned(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            raise ValueError(text(message))
            yield TriggerEvent(None)

    stage.add("a", poisoned, max_attempts=3)
    async with stage.running():
        stage.store.attempts.available = False
        stage.publish("1")
        await stage.until(lambda: not stage.left)
    assert [attempt for _, attempt in stage.observer.attempts] == [1, 2, 3]


@in_virtual_time
async def test_a_timeout_in_hand_is_an_attempt_and_ends_in_a_dead_letter() -> None:
    """A filter that hangs on one event is cancelled, gets it again, and after its attempts no more."""
    stage = Stage(ack_timeout=10.0)
    hung: list[str] = []

    async def hangs(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            if text(message) == "2":
                hung.append("2")
                await asyncio.sleep(1e6)
            yield TriggerEvent(text(message))

    stage.add("a", hangs, max_attempts=3)
    stage.add("b", echo)
    async with stage.running():
        stage.publish("1", "2", "3")
        await stage.until(lambda: not stage.left)
    assert hung == ["2", "2", "2"]
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert (unit.message_id, unit.dead.attempts) == ("orders/1", 3)
    assert "one event in hand for 10" in unit.dead.reason
    assert stage.store.payloads("a") == ["1", "3"]
    assert stage.store.payloads("b") == ["1", "2", "3"]


@in_virtual_time
async def test_a_dead_letter_that_comes_again_is_not_offered_again() -> None:
    """When another trigger needs the message again, the one that gave it up is spared its attempts."""
    stage = Stage(ack_timeout=20.0)
    offered: list[str] = []
    late: list[int] = []

    async def poisoned(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            offered.append(text(message))
            if text(message) == "1":
                raise ValueError("no")
            yield TriggerEvent(text(message))

    async def late_once(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            late.append(1)
            if len(late) == 1:
                await asyncio.sleep(1e6)
            yield TriggerEvent(text(message))

    stage.add("a", poisoned, max_attempts=2)
    stage.add("b", late_once)
    async with stage.running():
        stage.publish("1", "2", key="p0")
        await stage.until(lambda: not stage.left)
    assert offered.count("1") == 2
    assert len(stage.store.dead("a")) == 1
    assert stage.store.payloads("a") == ["2"]
    assert stage.store.payloads("b") == ["1", "2"]


@in_virtual_time
async def test_an_event_that_gets_through_has_no_attempts_left() -> None:
    """Attempts are forgotten when the event is done: by the store with its unit, by the runner where nothing was derived."""
    stage = Stage(ack_timeout=10.0)
    tries: dict[str, int] = {}

    async def late_once(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            tries[text(message)] = tries.get(text(message), 0) + 1
            if tries[text(message)] == 1:
                await asyncio.sleep(1e6)
            if text(message) == "derives":
                yield TriggerEvent("x")

    stage.add("a", late_once)
    async with stage.running():
        stage.publish("derives", "skips", key="p0")
        await stage.until(lambda: not stage.left)
        await stage.until(lambda: not stage.store.attempts.counts)
    assert stage.observer.attempts == [("a", 1), ("a", 1)]
    assert stage.store.payloads("a") == ["x"]


@in_virtual_time
async def test_x5_x9_an_overflow_fails_alone_and_is_no_attempt() -> None:
    """X9: a trigger that stops pulling fails alone after its grace; overflow is not an attempt; it comes back."""
    stage = Stage(subscriber_queue_size=4, overflow_grace=2.0, ack_timeout=1000.0, cohort_grace_period=1.0)
    blocked = asyncio.Event()

    async def stalls(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            await blocked.wait()
            yield TriggerEvent(text(message))

    stage.add("a", stalls)
    stage.add("b", echo)
    async with stage.running():
        stage.publish(*map(str, range(30)))
        await stage.until(lambda: stage.observer.failed)
        assert stage.observer.failed[0][0] == "a"
        assert isinstance(stage.observer.failed[0][1], SubscriberOverflow)
        await stage.until(lambda: len(stage.store.payloads("b")) == 30)
        blocked.set()
        await stage.until(lambda: not stage.left)
    assert sorted(stage.store.payloads("a"), key=int) == list(map(str, range(30)))
    assert {name for name, _ in stage.observer.failed} == {"a"}
    assert stage.observer.attempts == []


@in_virtual_time
async def test_x19_what_the_store_refuses_is_a_dead_letter_at_once() -> None:
    """X19: a payload that cannot be stored makes that delivery a dead letter with the reason; the trigger lives."""
    stage = Stage()

    async def derives(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield TriggerEvent(float("nan") if text(message) == "2" else text(message))
            yield TriggerEvent("second")

    stage.add("a", derives)
    async with stage.running():
        stage.writer.refuses = lambda unit: "NaN" if any(event.payload != event.payload for event in unit.events) else None
        stage.publish("1", "2", "3", key="p0")
        await stage.until(lambda: not stage.left)
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert unit.dead.message is not None
    assert (unit.message_id, unit.dead.cause, unit.dead.reason, unit.dead.message.value) == (
        "orders/1",
        "unstorable",
        "NaN",
        b"2",
    )
    assert stage.store.payloads("a") == ["1", "second", "3", "second"]
    assert stage.observer.restarts == []


@in_virtual_time
async def test_x19_a_dead_letter_that_is_refused_is_kept_without_its_message() -> None:
    """X19: the store takes a bare dead letter where the message itself is what it cannot hold."""
    stage = Stage()
    stage.add("a", echo)
    async with stage.running():
        stage.writer.refuses = lambda unit: "too large" if unit.dead is None or unit.dead.message is not None else None
        stage.publish("1")
        await stage.until(lambda: not stage.left)
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert unit.dead.reason == "too large (message not kept: too large)"


@in_virtual_time
async def test_r10_what_the_store_refuses_in_any_form_fails_at_once() -> None:
    """R10: no stored id, no ack: the event fails, and comes again."""
    stage = Stage(cohort_grace_period=1.0)
    stage.add("a", echo)
    async with stage.running():
        stage.writer.refuses = lambda unit: "never"
        stage.publish("1")
        await asyncio.sleep(1)
        assert stage.left == ["1"]
        stage.writer.refuses = lambda unit: None
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1"]


@in_virtual_time
async def test_r8_a_rejection_is_stored_before_the_broker_hears_of_it() -> None:
    """R8: what was yielded for a rejected event is discarded, and it is a dead letter of the trigger with reason and attempt."""
    stage = Stage()

    async def strict(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield TriggerEvent(text(message))
            if text(message) == "2":
                reject_shared_stream_event("malformed")
                yield TriggerEvent("too late")

    stage.add("a", strict)
    stage.add("b", echo)
    async with stage.running():
        stage.writer.withheld = {"a"}
        stage.publish("2")
        await stage.until(lambda: stage.writer.pending)
        assert stage.left == ["2"]
        stage.writer.withheld = set()
        stage.writer.write()
        await stage.until(lambda: not stage.left)
        stage.publish("3")
        await stage.until(lambda: not stage.left)
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert (unit.dead.cause, unit.dead.reason, unit.dead.attempts) == ("rejected", "malformed", 1)
    assert stage.store.payloads("a") == ["3"]
    assert stage.store.payloads("b") == ["2", "3"]
    assert [letter.reason for letter in stage.broker.dead_letters] == ["a: malformed"]


@in_virtual_time
async def test_x5_one_acked_one_rejected_one_failed() -> None:
    """X5: the message is kept for who failed; the rejection stays recorded, once; what who acked had stored is not doubled."""
    stage = Stage(ack_timeout=10.0)
    tries: list[int] = []

    async def rejects(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for _ in stream:
            reject_shared_stream_event("no")
            if False:
                yield TriggerEvent(None)

    async def fails_once(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            tries.append(1)
            if len(tries) == 1:
                await asyncio.sleep(1e6)
            yield TriggerEvent(text(message))

    stage.add("a", echo)
    stage.add("b", rejects)
    stage.add("c", fails_once)
    async with stage.running():
        stage.publish("1")
        await stage.until(lambda: stage.observer.failed)
        await asyncio.sleep(0.1)
        assert stage.left == ["1"]
        assert len(stage.store.dead("b")) == 1
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1"]
    assert stage.store.payloads("c") == ["1"]
    assert len(stage.store.dead("b")) == 1


@in_virtual_time
async def test_a_filter_that_returns_has_finished_for_good() -> None:
    """Its last event is stored and settled, the state outlives a restart, and the others go on without it."""
    stage = Stage()

    async def first_only(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield TriggerEvent(text(message))
            return

    stage.add("a", first_only)
    stage.add("b", echo)
    async with stage.running() as runner:
        stage.publish("1", "2")
        await stage.until(lambda: not stage.left)
        await stage.until(lambda: runner.status().triggers["a"].phase is Phase.FINISHED)
        assert stage.store.triggers.records["a"].state is TriggerState.FINISHED
    async with stage.running() as runner:
        stage.publish("3")
        await stage.until(lambda: not stage.left)
        assert runner.status().triggers["a"].phase is Phase.STOPPED
        assert runner.status().problems == []
    assert stage.store.payloads("a") == ["1"]
    assert stage.store.payloads("b") == ["1", "2", "3"]


@in_virtual_time
async def test_finishing_waits_for_the_store() -> None:
    """That a trigger has finished is stored before it leaves, however long the store is away."""
    stage = Stage()

    async def at_once(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield TriggerEvent(text(message))
            return

    stage.add("a", at_once)
    async with stage.running() as runner:
        stage.store.triggers.available = False
        stage.publish("1")
        await stage.until(lambda: stage.store.payloads("a"))
        await asyncio.sleep(20)
        assert runner.status().triggers["a"].state is TriggerState.ACTIVE
        stage.store.triggers.available = True
        await stage.until(lambda: runner.status().triggers["a"].phase is Phase.FINISHED)


@in_virtual_time
async def test_r4_a_stream_that_ends_is_opened_again_with_its_whole_cohort() -> None:
    """R4, X20: every trigger comes back at the same moment; the source's error is nobody's event."""
    stage = Stage()
    producers: list[SharedStreamProducer] = []

    def create() -> SharedStreamProducer:
        producer = stage.broker.create_producer()
        producers.append(producer)
        if len(producers) == 1:

            async def advance(batch: Any) -> None:
                raise ConnectionError("gone")

            producer.advance = advance  # type: ignore[method-assign]
        return producer

    stage.create_producer = create
    stage.add("a", echo)
    stage.add("b", echo)
    async with stage.running() as runner:
        stage.publish("1")
        await stage.until(lambda: stage.observer.stream_restarts)
        assert runner.status().streams["orders"].is_stuck
        assert "ConnectionError('gone')" in runner.status().problems[0]
        await stage.until(lambda: not stage.left)
        assert len(producers) == 2
        assert runner.status().problems == []
    assert len(stage.observer.stream_restarts) == 1  # one failure of the stream, not one a trigger
    assert stage.store.payloads("a") == stage.store.payloads("b") == ["1"]


@in_virtual_time
async def test_a_filter_that_swallows_its_streams_end_has_not_finished() -> None:
    """Whether the stream failed is told by the subscription, not by what the filter does with the exception."""
    stage = Stage()
    opened: list[SharedStreamProducer] = []

    def create() -> SharedStreamProducer:
        producer = stage.broker.create_producer()
        opened.append(producer)
        if len(opened) == 1:

            async def advance(batch: Any) -> None:
                raise ConnectionError("gone")

            producer.advance = advance  # type: ignore[method-assign]
        return producer

    async def swallows(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        try:
            async for message in stream:
                yield TriggerEvent(text(message))
        except (ConnectionError, StreamError):
            return

    stage.create_producer = create
    stage.add("a", swallows)
    async with stage.running():
        stage.publish("1")
        await stage.until(lambda: not stage.left)
    assert stage.store.triggers.records["a"].state is TriggerState.ACTIVE


@in_virtual_time
async def test_a_misconfigured_source_is_tried_slowly_and_named() -> None:
    """`SourceMisconfigured`: unready with the reason, a slow backoff, no hot loop."""
    stage = Stage()
    tried: list[float] = []

    def create() -> SharedStreamProducer:
        tried.append(asyncio.get_running_loop().time())
        raise SourceMisconfigured("no topic orders")

    stage.create_producer = create
    stage.add("a", echo)
    async with stage.running() as runner:
        await asyncio.sleep(120)
        assert 3 <= len(tried) <= 8
        assert any("no topic orders" in line for line in runner.status().problems)


@in_virtual_time
async def test_one_trigger_that_cannot_be_built_harms_nobody_else() -> None:
    """A trigger whose class raises is named and tried again; its siblings wait the grace for it, and run."""
    stage = Stage(cohort_grace_period=2.0)
    stage.add("a", echo)
    stage.add("b", echo)
    good = stage.triggers["b"]
    broken = [True]

    def build() -> Any:
        if broken[0]:
            raise ImportError("no module named b")
        return good.build()

    stage.triggers["b"] = type(good)(good.definition, build)
    async with stage.running() as runner:
        stage.publish("1")
        await stage.until(lambda: stage.store.payloads("a"))
        assert stage.left == ["1"]  # nothing is committed past what b has not seen
        assert any("b cannot run: ImportError" in line for line in runner.status().problems)
        broken[0] = False
        await stage.until(lambda: not stage.left)
        assert runner.status().problems == []
    assert stage.store.payloads("a") == stage.store.payloads("b") == ["1"]


@in_virtual_time
async def test_a_filter_that_yields_something_else_fails_on_that_event() -> None:
    """Anything but a TriggerEvent is the filter's error."""
    stage = Stage()

    async def wrong(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            yield {"not": text(message)}  # type: ignore[misc]

    stage.add("a", wrong, max_attempts=1)
    async with stage.running():
        stage.publish("1")
        await stage.until(lambda: not stage.left)
    (unit,) = stage.store.dead("a")
    assert unit.dead is not None
    assert unit.dead.reason == "TypeError('a filter yields TriggerEvent, not dict')"


@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError()])
def test_a_filter_cannot_end_the_process(error: BaseException) -> None:
    """`sys.exit`, or a cancellation of its own, in a filter is a failed attempt like any other."""

    @in_virtual_time
    async def run() -> None:
        stage = Stage()

        async def leaves(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
            async for _ in stream:
                raise error
                yield TriggerEvent(None)

        stage.add("a", leaves, max_attempts=2)
        stage.add("b", echo)
        async with stage.running():
            stage.publish("1")
            await stage.until(lambda: not stage.left)
        assert len(stage.store.dead("a")) == 1
        assert stage.store.payloads("b") == ["1"]

    run()


@in_virtual_time
async def test_a_filter_that_outlives_its_run_reaches_nothing() -> None:
    """A hung filter that ignores its cancellation is left behind: what it yields later binds to nobody's event."""
    stage = Stage(ack_timeout=10.0)
    runs: list[int] = []
    outcomes: list[str] = []

    async def stubborn(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        runs.append(1)
        is_first = len(runs) == 1
        try:
            async for message in stream:
                if is_first:
                    for _ in range(3):
                        try:
                            await asyncio.sleep(60)
                        except asyncio.CancelledError:
                            continue
                else:
                    await asyncio.sleep(5)
                yield TriggerEvent(f"{text(message)} of run {1 if is_first else 2}")
        finally:
            outcomes.append("first ended" if is_first else "second ended")

    stage.add("a", stubborn)
    async with stage.running():
        stage.publish(*map(str, range(40)), key="p0")
        await stage.until(lambda: not stage.left)
        await stage.until(lambda: outcomes == ["first ended"])
    assert stage.store.payloads("a") == [f"{n} of run 2" for n in range(40)]


@in_virtual_time
async def test_r2_unacknowledged_mode_stores_and_tells_the_broker_nothing() -> None:
    """R2: `acknowledge: false`: the filter sees the same raw events, units are stored, nothing is settled."""
    stage = Stage()
    stage.acknowledge = False
    stage.add("a", echo)
    async with stage.running():
        stage.publish("1", "2")
        await stage.until(lambda: len(stage.store.payloads("a")) == 2)
        await asyncio.sleep(5)
        assert stage.left == ["1", "2"]
    assert [unit.message_id for unit in stage.store.units] == ["orders/0", "orders/1"]


@in_virtual_time
async def test_x9_unacknowledged_mode_waits_for_the_store_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """X9: memory stays bounded where no broker waits: the filter is held back while too much waits for the store."""
    monkeypatch.setattr("headrace.runner.submitter.MAX_UNGATED_UNITS", 10)
    stage = Stage()
    stage.acknowledge = False
    stage.add("a", echo)
    async with stage.running():
        stage.writer.go(away=True)
        stage.publish(*map(str, range(50)))
        await asyncio.sleep(30)
        assert len(stage.writer.pending) == 11
        stage.writer.go(away=False)
        await stage.until(lambda: len(stage.store.payloads("a")) == 50)


@in_virtual_time
async def test_r9_the_clock_stands_still_while_the_store_is_away() -> None:
    """R9: an outage of the store fails nobody; what waited is stored and settled when it is back."""
    stage = Stage(ack_timeout=10.0)
    stage.add("a", echo)
    async with stage.running() as runner:
        stage.writer.go(away=True)
        stage.publish("1", "2")
        await asyncio.sleep(600)
        assert stage.observer.failed == []
        assert runner.status().problems == ["the store does not answer"]
        stage.writer.go(away=False)
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1", "2"]
