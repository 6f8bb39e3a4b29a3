"""Starting, stopping, pausing, removing, going over to another config. The real engine in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.connector import Message
from headrace.errors import ConfigError
from headrace.runner import Phase, TriggerSpec
from headrace.store import TriggerDefinition, TriggerState
from headrace.streams.contract import SharedStreamProducer
from headrace.testing.memory import MemoryBroker
from headrace.testing.virtual_time import in_virtual_time
from headrace.triggers.base import BaseEventTrigger, TriggerEvent
from tests.unit.runner.fakes import Stage, echo, text


async def set_state(stage: Stage, trigger_id: str, state: TriggerState) -> None:
    """As `headrace triggers` does, from another process."""
    await stage.store.triggers.set_state(trigger_id, state, "by hand")


@in_virtual_time
async def test_pause_and_resume_act_within_a_second_and_outlive_a_restart() -> None:
    """A paused trigger leaves, is not expected, and comes back when it is resumed, also by a new process."""
    stage = Stage()
    stage.add("a", echo)
    stage.add("b", echo)
    async with stage.running() as runner:
        stage.publish("1")
        await stage.until(lambda: not stage.left)
        await set_state(stage, "a", TriggerState.PAUSED)
        await asyncio.sleep(1)
        assert runner.status().triggers["a"].phase is Phase.STOPPED
        stage.publish("2")
        await stage.until(lambda: not stage.left, timeout=1)  # nobody waits for a
        assert runner.status().problems == []
    async with stage.running() as runner:
        stage.publish("3")
        await stage.until(lambda: not stage.left, timeout=1)
        assert runner.status().triggers["a"].state is TriggerState.PAUSED
        await set_state(stage, "a", TriggerState.ACTIVE)
        await asyncio.sleep(1)
        stage.publish("4")
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1", "4"]
    assert stage.store.payloads("b") == ["1", "2", "3", "4"]
    assert "a on_kill" not in stage.life


@in_virtual_time
async def test_a_pause_lets_the_filter_finish_the_event_in_hand() -> None:
    """Pausing loses nothing: the event in hand is finished and stored; what was not pulled comes again to the others only."""
    stage = Stage()
    busy = asyncio.Event()

    async def slow(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            busy.set()
            await asyncio.sleep(3)
            yield TriggerEvent(text(message))

    stage.add("a", slow)
    async with stage.running() as runner:
        stage.publish("1", "2")
        await busy.wait()
        await set_state(stage, "a", TriggerState.PAUSED)
        await stage.until(lambda: stage.life == ["a cleanup"])
        assert stage.store.payloads("a") == ["1"]
        assert runner.status().triggers["a"].phase is Phase.STOPPED
        await set_state(stage, "a", TriggerState.ACTIVE)
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1", "2"]


@in_virtual_time
async def test_an_event_that_a_paused_filter_does_not_finish_is_not_acked() -> None:
    """A filter cut off with an event in hand has failed it: it comes again."""
    stage = Stage()
    busy = asyncio.Event()

    async def stuck(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            if not busy.is_set():
                busy.set()
                await asyncio.sleep(1e6)
            yield TriggerEvent(text(message))

    stage.add("a", stuck)
    async with stage.running():
        stage.publish("1")
        await busy.wait()
        await set_state(stage, "a", TriggerState.PAUSED)
        await asyncio.sleep(20)
        assert stage.left == ["1"]
        await set_state(stage, "a", TriggerState.ACTIVE)
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1"]


@in_virtual_time
async def test_a_trigger_that_is_slow_to_leave_delays_nobody_elses_wish() -> None:
    """One trigger's hanging filter does not keep another from being paused within a second."""
    stage = Stage()
    busy = asyncio.Event()

    async def hangs(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            busy.set()
            await asyncio.sleep(1e6)
            yield TriggerEvent(text(message))

    stage.add("a", hangs)
    stage.add("b", echo)
    async with stage.running() as runner:
        stage.publish("1")
        await busy.wait()
        await set_state(stage, "a", TriggerState.PAUSED)
        await asyncio.sleep(1)
        await set_state(stage, "b", TriggerState.PAUSED)
        await asyncio.sleep(1)
        assert runner.status().triggers["a"].phase is Phase.RUNNING
        assert runner.status().triggers["b"].phase is Phase.STOPPED
        await set_state(stage, "a", TriggerState.ACTIVE)  # before it has left
        await asyncio.sleep(10)
        assert runner.status().triggers["a"].phase is Phase.RUNNING


@pytest.mark.parametrize("was_paused", [False, True])
def test_removing_calls_on_kill_once(was_paused: bool) -> None:
    """`on_kill` is for a trigger that a user removes, running or paused; `cleanup` for every exit."""

    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        stage.add("a", echo)
        stage.add("b", echo)
        async with stage.running():
            await asyncio.sleep(1)
            if was_paused:
                await set_state(stage, "a", TriggerState.PAUSED)
                await asyncio.sleep(1)
            await set_state(stage, "a", TriggerState.REMOVED)
            await asyncio.sleep(1)
            assert stage.life.count("a on_kill") == 1
            assert stage.life[-1] == "a cleanup"
            stage.publish("1")
            await stage.until(lambda: not stage.left, timeout=1)
        async with stage.running():
            await asyncio.sleep(1)
        assert stage.store.payloads("a") == []
        assert [entry for entry in stage.life if entry.endswith("on_kill")] == ["a on_kill"]

    run()


@in_virtual_time
async def test_cleanup_and_on_kill_are_bounded_and_their_errors_logged(caplog: pytest.LogCaptureFixture) -> None:
    """User code that hangs or raises at the end does not hold the runner up."""
    stage = Stage()
    stage.add("a", echo)
    good = stage.triggers["a"]

    def build() -> Any:
        trigger = good.build()

        async def hang() -> None:
            await asyncio.sleep(1e6)

        async def broken() -> None:
            raise ValueError("cannot clean up")

        trigger.on_kill = hang  # type: ignore[method-assign]
        trigger.cleanup = broken  # type: ignore[method-assign]
        return trigger

    stage.triggers["a"] = replace(good, build=build)
    async with stage.running() as runner:
        await asyncio.sleep(1)
        await set_state(stage, "a", TriggerState.REMOVED)
        await asyncio.sleep(10)
        assert runner._runs == {}
    assert "a: on_kill did not end within" in caplog.text
    assert "cannot clean up" in caplog.text


@in_virtual_time
async def test_stopping_stores_and_settles_what_is_finished() -> None:
    """R14: the event in hand is finished, stored and settled; what is not pulled is left to redelivery."""
    stage = Stage()
    busy = asyncio.Event()

    async def slow(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            busy.set()
            await asyncio.sleep(1)
            yield TriggerEvent(text(message))

    stage.add("a", slow)
    async with stage.running():
        stage.publish("1", "2", "3", key="p0")
        await busy.wait()
    assert stage.store.payloads("a") == ["1"]
    assert stage.left == ["2", "3"]
    assert stage.life == ["a cleanup"]
    assert all(message.delivery_count == 1 for message in stage.broker.waiting)  # given back, not failed


@in_virtual_time
async def test_stopping_takes_no_longer_than_it_may() -> None:
    """R14: a filter that hangs, a store that is away and a broker that does not answer do not hold the shutdown up."""
    stage = Stage()

    def create() -> SharedStreamProducer:
        producer = stage.broker.create_producer()

        async def hang(*_: Any) -> None:
            await asyncio.sleep(1e6)

        vars(producer).update(advance=hang, aclose=hang)
        return producer

    async def hangs(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in stream:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                await asyncio.sleep(1e6)
            yield TriggerEvent(text(message))

    stage.create_producer = create
    stage.add("a", hangs)
    stage.add("b", echo)
    runner = stage.runner = stage.make_runner()
    await runner.start()
    await asyncio.sleep(1)
    stage.writer.go(away=True)
    stage.publish("1")
    await asyncio.sleep(1)
    started = asyncio.get_running_loop().time()
    await runner.stop(10.0)
    assert asyncio.get_running_loop().time() - started <= 10.5
    assert stage.left == ["1"]


@in_virtual_time
async def test_x3_what_was_stored_but_not_acked_is_not_doubled() -> None:
    """X3: killed between storing and acking: the message returns, no second row, then the ack."""
    broker = MemoryBroker("orders", lease_seconds=5.0)
    stage = Stage(broker=broker)
    stage.add("a", echo)
    runner = stage.runner = stage.make_runner()
    await runner.start()
    await asyncio.sleep(1)
    consumer = broker.consumers[0]

    async def killed(*_: Any) -> None:
        await asyncio.sleep(1e6)

    vars(consumer).update(advance=killed)
    stage.publish("1")
    await stage.until(lambda: stage.store.payloads("a"))
    broker.crash(consumer)
    await runner.stop(1.0)
    assert stage.left == ["1"]
    async with stage.running():
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1"]


@in_virtual_time
async def test_x1_who_joins_later_is_not_waited_for() -> None:
    """X1: an event that was fanned out before a trigger was resumed is settled without it."""
    stage = Stage()
    stage.add("a", echo)
    stage.add("b", echo)
    stage.store.triggers._put(stage.triggers["b"].definition, TriggerState.PAUSED)
    async with stage.running():
        stage.writer.withheld = {"a"}
        stage.publish("1")
        await stage.until(lambda: stage.writer.pending)
        await set_state(stage, "b", TriggerState.ACTIVE)
        await asyncio.sleep(1)
        stage.writer.withheld = set()
        stage.writer.write()
        await stage.until(lambda: not stage.left)
        stage.publish("2")
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("b") == ["2"]


@in_virtual_time
async def test_x6_nobody_online_is_no_hot_loop() -> None:
    """X6: a stream whose triggers are all paused is not open; nothing is read, nothing lost."""
    stage = Stage()
    stage.add("a", echo)
    stage.store.triggers._put(stage.triggers["a"].definition, TriggerState.PAUSED)
    async with stage.running() as runner:
        stage.publish("1")
        await asyncio.sleep(60)
        assert stage.broker.consumers == []
        assert runner.status().streams["orders"].state == "not open"
        assert runner.status().problems == []
        await set_state(stage, "a", TriggerState.ACTIVE)
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("a") == ["1"]


@in_virtual_time
async def test_apply_restarts_only_what_changed() -> None:
    """SIGHUP: an unchanged trigger and stream run on; a changed one is replaced, and no event passes it by."""
    stage = Stage()
    stage.add("a", echo)
    stage.add("b", echo)
    async with stage.running() as runner:
        await asyncio.sleep(1)
        consumers = list(stage.broker.consumers)
        run_of_a = runner._runs["a"]

        async def louder(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
            async for message in stream:
                yield TriggerEvent(text(message) + "!")

        stage.add("b", louder, kwargs={"loud": True})
        stage.publish("1", key="p0")
        await runner.apply(stage.stream_specs(), stage.triggers.values())
        stage.publish("2", key="p0")
        await stage.until(lambda: not stage.left)
        assert stage.broker.consumers == consumers
        assert runner._runs["a"] is run_of_a
    assert stage.store.payloads("a") == ["1", "2"]
    assert [payload.rstrip("!") for payload in stage.store.payloads("b")] == ["1", "2"]
    assert stage.store.payloads("b")[-1] == "2!"
    assert "b on_kill" not in stage.life


@in_virtual_time
async def test_apply_adds_and_removes_triggers() -> None:
    """A trigger that the new config lacks is removed, with `on_kill`; one that comes back with a later config is active again."""
    stage = Stage()
    stage.add("a", echo)
    stage.add("b", echo)
    async with stage.running() as runner:
        await asyncio.sleep(1)
        removed = stage.triggers.pop("b")
        stage.add("c", echo)
        await runner.apply(stage.stream_specs(), stage.triggers.values())
        assert stage.store.triggers.records["b"].state is TriggerState.REMOVED
        assert "b on_kill" in stage.life
        stage.publish("1")
        await stage.until(lambda: not stage.left)
        stage.triggers["b"] = removed
        await runner.apply(stage.stream_specs(), stage.triggers.values())
        stage.publish("2")
        await stage.until(lambda: not stage.left)
    assert stage.store.payloads("b") == ["2"]
    assert stage.store.payloads("c") == ["1", "2"]


@in_virtual_time
async def test_apply_keeps_what_a_user_removed_by_hand() -> None:
    """`headrace triggers … remove` holds as long as the config names the trigger."""
    stage = Stage()
    stage.add("a", echo)
    stage.add("b", echo)
    async with stage.running() as runner:
        await set_state(stage, "a", TriggerState.REMOVED)
        await asyncio.sleep(1)
        await runner.apply(stage.stream_specs(), stage.triggers.values())
        assert runner.status().triggers["a"].state is TriggerState.REMOVED
        assert runner.status().triggers["a"].phase is Phase.STOPPED


@in_virtual_time
async def test_apply_reopens_a_stream_that_changed() -> None:
    """A stream with other settings is closed and opened again; its triggers come along, nothing is lost or doubled."""
    stage = Stage()
    stage.add("a", echo)
    async with stage.running() as runner:
        await asyncio.sleep(1)
        (consumer,) = stage.broker.consumers
        stage.settings = replace(stage.settings, ack_timeout=77.0)
        stage.publish("1")
        await runner.apply(stage.stream_specs(), stage.triggers.values())
        stage.publish("2")
        await stage.until(lambda: not stage.left)
        assert stage.broker.consumers != [consumer]
    assert stage.store.payloads("a") == ["1", "2"]


@in_virtual_time
async def test_apply_refuses_a_config_that_does_not_hold_together() -> None:
    """A trigger of no stream is named, and everything goes on as it was."""
    stage = Stage()
    stage.add("a", echo)
    async with stage.running() as runner:
        spec = stage.triggers["a"]
        lost = replace(spec, definition=TriggerDefinition("z", "tests.Watching", {}, "payments"))
        with pytest.raises(ConfigError, match="trigger 'z' watches 'payments', which is no stream"):
            await runner.apply(stage.stream_specs(), [spec, lost])
        stage.publish("1")
        await stage.until(lambda: not stage.left)


class Tail(BaseEventTrigger):
    """Brings its stream itself, as a trigger written for Airflow does."""

    broker: MemoryBroker
    built: list[dict[str, Any]]

    def __init__(self, queue: str) -> None:
        super().__init__()
        self.queue = queue

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Tail", {"queue": self.queue}

    def shared_stream_key(self) -> tuple[str, str]:
        return ("tail", self.queue)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        cls.built.append(kwargs)
        return cls.broker.create_producer()

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            yield TriggerEvent(text(message))


class Peek(Tail):
    """The same in unacknowledged mode."""

    create_shared_stream_producer = BaseEventTrigger.create_shared_stream_producer

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        cls.built.append(kwargs)
        async for batch in cls.broker.create_producer().open_batches():
            for raw, _ in batch:
                yield raw


@pytest.mark.parametrize("kind", [Tail, Peek])
def test_r1_triggers_that_bring_their_stream_share_it_by_key(kind: type[Tail]) -> None:
    """R1: equal keys, one producer, of the first one's kwargs; without `stream:` a trigger class is its own source."""

    @in_virtual_time
    async def run() -> None:
        stage = Stage()
        kind.broker, kind.built = stage.broker, []
        for name in ("a", "b"):
            stage.triggers[name] = TriggerSpec(TriggerDefinition(name, "tests.Tail", {"queue": "q"}), lambda: kind("q"))
        async with stage.running() as runner:
            stage.publish("1", "2")
            await stage.until(lambda: len(stage.store.payloads("a") + stage.store.payloads("b")) == 4)
            if kind is Tail:
                await stage.until(lambda: not stage.left)
            status = runner.status()
            assert status.streams[kind.__qualname__].subscribers == 2
            assert status.problems == []
        assert kind.built == [{"queue": "q"}]
        assert bool(stage.left) is (kind is Peek)

    run()


@in_virtual_time
async def test_apply_moves_a_trigger_that_brings_another_stream_now() -> None:
    """A trigger whose key changes goes over to its new stream; its old one does not wait for it."""
    stage = Stage()
    Tail.broker, Tail.built = stage.broker, []

    def spec(name: str, queue: str) -> TriggerSpec:
        return TriggerSpec(TriggerDefinition(name, "tests.Tail", {"queue": queue}), lambda: Tail(queue))

    stage.triggers = {"a": spec("a", "old"), "b": spec("b", "old")}
    async with stage.running() as runner:
        await asyncio.sleep(1)
        await runner.apply(stage.stream_specs(), [spec("a", "old"), spec("b", "new")])
        await asyncio.sleep(1)
        streams = runner.status().streams
        assert (streams["Tail"].subscribers, streams["Tail"].missing) == (1, ())
        assert (streams["Tail#2"].subscribers, streams["Tail#2"].missing) == (1, ())
        await runner.apply(stage.stream_specs(), [spec("a", "old")])
        assert set(runner.status().streams) == {"orders", "Tail"}


@in_virtual_time
async def test_a_trigger_that_cannot_be_built_to_learn_its_stream_is_tried_again() -> None:
    """Nobody knows what an unbuildable trigger watches; when it can be built it runs."""
    stage = Stage()
    stage.streams = []
    Tail.broker, Tail.built = stage.broker, []
    broken = [True]

    def build() -> Tail:
        if broken[0]:
            raise ImportError("no module named tail")
        return Tail("q")

    stage.triggers["a"] = TriggerSpec(TriggerDefinition("a", "tests.Tail", {"queue": "q"}), build)
    async with stage.running() as runner:
        await asyncio.sleep(5)
        assert runner.status().problems == ["trigger a cannot run: ImportError('no module named tail')"]
        broken[0] = False
        stage.publish("1")
        await stage.until(lambda: not stage.left)
        assert runner.status().problems == []


@in_virtual_time
async def test_status_says_what_a_stream_holds() -> None:
    """In flight, bytes, the oldest age, who is there: as the engine has it."""
    stage = Stage()
    stage.add("a", echo)
    async with stage.running() as runner:
        stage.writer.withheld = {"a"}
        stage.publish("12345", "12345", key="p0")
        await stage.until(lambda: len(stage.writer.pending) == 2)
        await asyncio.sleep(7)
        status = runner.status().streams["orders"]
        assert (status.state, status.connector, status.subscribers, status.missing) == ("polling", "memory", 1, ())
        assert status.in_flight == 2
        assert status.in_flight_bytes > 10  # what was derived counts too
        assert status.oldest_age == pytest.approx(7, abs=0.5)
        stage.writer.withheld = set()
        stage.writer.write()


@in_virtual_time
async def test_stats_of_the_producer_are_part_of_the_status() -> None:
    """What the producer tells of itself is kept fresh, and its trouble makes the stream unready."""
    stage = Stage()

    def create() -> SharedStreamProducer:
        producer = stage.broker.create_producer()
        vars(producer).update(stats=lambda: {"lag": {"p0": 7}, "trouble": "the position does not move"})
        return producer

    stage.create_producer = create
    stage.add("a", echo)
    async with stage.running() as runner:
        await asyncio.sleep(6)
        assert runner.status().streams["orders"].source["lag"] == {"p0": 7}
        assert runner.status().problems == ["stream orders: the position does not move"]
