"""A stage for the runner in virtual time: the real engine, a broker in memory on the same loop, a store that is a few dicts."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from headrace.connector import Message
from headrace.errors import StoreUnavailable, Unstorable
from headrace.runner import HostedProducer, Observer, Runner, StreamSpec, TriggerSpec
from headrace.store import Cause, Lease, TriggerDefinition, TriggerRecord, TriggerState, Unit
from headrace.streams.contract import SharedStreamProducer
from headrace.streams.stream import StreamSettings
from headrace.testing.memory import MemoryBroker
from headrace.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

T = TypeVar("T")
Filter = Callable[[AsyncIterator[Any]], AsyncIterator[TriggerEvent]]


class SameLoop:
    """Stands for the thread of a hosted producer, on the loop of the test."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.get_running_loop()

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        self.loop.call_soon(function, *args)

    def run_blocking(self, function: Callable[[], T], timeout: float) -> T:
        return function()

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await function()

        return await self.loop.create_task(run())

    def request_stop(self) -> None: ...

    async def stop(self, timeout: float) -> bool:
        return True

    def whereabouts(self) -> str:
        return "here"


class FakeAttempts:
    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}
        self.available = True

    async def bump(self, trigger_id: str, message_id: str, error: str) -> int:
        if not self.available:
            raise StoreUnavailable("away")
        self.counts[trigger_id, message_id] = self.counts.get((trigger_id, message_id), 0) + 1
        return self.counts[trigger_id, message_id]

    async def clear(self, trigger_id: str, message_id: str) -> None:
        self.counts.pop((trigger_id, message_id), None)


class FakeTriggers:
    def __init__(self) -> None:
        self.records: dict[str, TriggerRecord] = {}
        self.revision = 0
        self.available = True

    def _put(self, definition: TriggerDefinition, state: TriggerState, reason: str | None = None) -> TriggerRecord:
        self.revision += 1
        record = TriggerRecord(definition, state, reason, self.revision, 0.0, 0.0)
        self.records[definition.trigger_id] = record
        return record

    async def register(self, definitions: Sequence[TriggerDefinition]) -> list[TriggerRecord]:
        records = []
        for definition in definitions:
            old = self.records.get(definition.trigger_id)
            if old is None or old.definition != definition:
                keep = old is not None and old.state in (TriggerState.PAUSED, TriggerState.REMOVED)
                records.append(self._put(definition, old.state if old is not None and keep else TriggerState.ACTIVE))
            else:
                records.append(old)
        return records

    async def set_state(self, trigger_id: str, state: TriggerState, reason: str | None = None) -> TriggerRecord:
        if not self.available:
            raise StoreUnavailable("away")
        return self._put(self.records[trigger_id].definition, state, reason)

    async def changed_since(self, revision: int) -> list[TriggerRecord]:
        changed = [record for record in self.records.values() if record.revision > revision]
        return sorted(changed, key=lambda record: record.revision)


class FakeLeases:
    def __init__(self) -> None:
        self.held: dict[str, tuple[Lease, float]] = {}
        self.tokens = 0
        self.available = True

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        now = asyncio.get_running_loop().time()
        if name in self.held and self.held[name][1] > now and self.held[name][0].owner != owner:
            return None
        self.tokens += 1
        lease = Lease(name, owner, self.tokens)
        self.held[name] = lease, now + seconds
        return lease

    async def renew(self, leases: Collection[Lease], seconds: float) -> set[str]:
        if not self.available:
            raise StoreUnavailable("away")
        now = asyncio.get_running_loop().time()
        kept = {lease.name for lease in leases if self.held.get(lease.name, (None, 0))[0] == lease}
        for lease in leases:
            if lease.name in kept:
                self.held[lease.name] = lease, now + seconds
        return kept

    async def release(self, leases: Collection[Lease]) -> None:
        for lease in leases:
            if self.held.get(lease.name, (None, 0))[0] == lease:
                del self.held[lease.name]


class FakeStore:
    """What the store has: `events` as (trigger, message id, payload), `dead` letters, in the order they were stored."""

    def __init__(self) -> None:
        self.attempts = FakeAttempts()
        self.triggers = FakeTriggers()
        self.leases = FakeLeases()
        self.units: list[Unit] = []
        self._known: set[tuple[str, str]] = set()

    def keep(self, unit: Unit) -> None:
        """Store a unit as the real one does: once by (trigger, message id), and with it go its attempts."""
        if unit.message_id is not None:
            key = unit.trigger_id, unit.message_id
            self.attempts.counts.pop(key, None)
            if key in self._known:
                return
            self._known.add(key)
        self.units.append(unit)

    def payloads(self, trigger_id: str) -> list[Any]:
        return [event.payload for unit in self.units if unit.trigger_id == trigger_id for event in unit.events]

    def dead(self, trigger_id: str) -> list[Unit]:
        return [unit for unit in self.units if unit.trigger_id == trigger_id and unit.dead is not None]


class FakeWriter:
    """Stores what was submitted 1 ms later, unless it is told otherwise."""

    def __init__(
        self,
        store: FakeStore,
        *,
        on_stored: Callable[[list[Unit]], None],
        on_refused: Callable[[Unit, Exception], None],
        on_available: Callable[[bool], None],
        on_group: Any,
    ) -> None:
        self.store = store
        self.on_stored = on_stored
        self.on_refused = on_refused
        self.on_available = on_available
        self.available = True
        self.withheld: set[str] = set()
        """Triggers whose units are not stored now."""
        self.refuses: Callable[[Unit], str | None] = lambda unit: None
        self.pending: list[Unit] = []
        self.pending_bytes = 0

    @property
    def pending_units(self) -> int:
        return len(self.pending)

    def submit(self, unit: Unit) -> None:
        self.pending.append(unit)
        asyncio.get_running_loop().call_later(0.001, self.write)

    def write(self) -> None:
        if not self.available:
            return
        ready = [unit for unit in self.pending if unit.trigger_id not in self.withheld]
        self.pending = [unit for unit in self.pending if unit.trigger_id in self.withheld]
        stored = []
        for unit in ready:
            if (reason := self.refuses(unit)) is not None:
                self.on_refused(unit, Unstorable(reason))
            else:
                self.store.keep(unit)
                stored.append(unit)
        if stored:
            self.on_stored(stored)

    def go(self, *, away: bool) -> None:
        self.available = not away
        self.on_available(self.available)
        self.write()

    async def flush(self) -> None:
        while self.pending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        self.pending.clear()


class Watching(BaseEventTrigger):
    """A trigger made of a function; notes its life."""

    def __init__(self, name: str, function: Filter, life: list[str]) -> None:
        super().__init__()
        self.name = name
        self.function = function
        self.life = life

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.Watching", {"name": self.name}

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        return self.function(shared_stream)

    async def cleanup(self) -> None:
        self.life.append(f"{self.name} cleanup")

    async def on_kill(self) -> None:
        self.life.append(f"{self.name} on_kill")


class Noting(Observer):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.dead_letters: list[tuple[str, Cause]] = []
        self.restarts: list[tuple[str, BaseException]] = []
        self.stream_restarts: list[BaseException] = []
        self.attempts: list[tuple[str, int]] = []
        self.failed: list[tuple[Any, Exception]] = []
        self.blocked: list[tuple[str | None, float]] = []

    def on_dead_letter(self, trigger_id: str, stream: str | None, cause: Cause) -> None:
        self.dead_letters.append((trigger_id, cause))

    def on_trigger_restart(self, trigger_id: str, error: BaseException) -> None:
        self.restarts.append((trigger_id, error))

    def on_stream_restart(self, stream: str, error: BaseException) -> None:
        self.stream_restarts.append(error)

    def on_attempt_failed(self, trigger_id: str, attempt: int) -> None:
        self.attempts.append((trigger_id, attempt))

    def on_subscriber_failed(self, key: Any, trigger_id: Any, error: Exception) -> None:
        self.failed.append((trigger_id, error))

    def on_loop_blocked(self, trigger_id: str | None, seconds: float) -> None:
        self.blocked.append((trigger_id, seconds))


class Stage:
    """One stream "orders" on a broker in memory, and triggers made of functions."""

    def __init__(self, *, store: FakeStore | None = None, broker: MemoryBroker | None = None, **settings: Any) -> None:
        self.broker = broker or MemoryBroker("orders")
        self.store = store or FakeStore()
        self.observer = Noting()
        self.life: list[str] = []
        self.settings = StreamSettings(**{"cohort_grace_period": 30.0, **settings})
        self.create_producer: Callable[[], SharedStreamProducer] = self.broker.create_producer
        self.acknowledge = True
        self.streams = ["orders"]
        self.triggers: dict[str, TriggerSpec] = {}
        self.writers: list[FakeWriter] = []
        self.runner: Runner

    @property
    def writer(self) -> FakeWriter:
        return self.writers[-1]

    def add(self, name: str, function: Filter, *, kwargs: dict[str, Any] | None = None, max_attempts: int = 5) -> None:
        definition = TriggerDefinition(name, "tests.Watching", kwargs or {}, "orders")
        self.triggers[name] = TriggerSpec(definition, lambda: Watching(name, function, self.life), max_attempts)

    def add_streamless(self, name: str, build: Callable[[], BaseTrigger]) -> None:
        self.triggers[name] = TriggerSpec(TriggerDefinition(name, "tests.Streamless", {}), build)

    def stream_specs(self) -> list[StreamSpec]:
        return [
            StreamSpec(name, "memory", {}, lambda: self.create_producer(), self.settings, acknowledge=self.acknowledge)
            for name in self.streams
        ]

    def make_runner(self) -> Runner:
        def make_writer(*args: Any, **callbacks: Any) -> FakeWriter:
            self.writers.append(FakeWriter(*args, **callbacks))
            return self.writer

        store: Any = self.store
        return Runner(
            store,
            self.stream_specs(),
            self.triggers.values(),
            observer=self.observer,
            blocked_after=None,
            make_writer=make_writer,  # type: ignore[arg-type]
            host=functools.partial(HostedProducer, make_thread=SameLoop),  # type: ignore[arg-type]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Runner]:
        self.runner = self.make_runner()
        await self.runner.start()
        try:
            yield self.runner
        finally:
            await self.runner.stop(30)

    def publish(self, *values: str, key: str | None = None) -> None:
        self.broker.publish(
            Message(value=value.encode(), id="", source="", timestamp=0.0, key=None if key is None else key.encode())
            for value in values
        )

    @property
    def left(self) -> list[str]:
        """What the broker still has."""
        return [message.value.decode() for message in self.broker.waiting if message.value is not None]

    async def until(self, condition: Callable[[], Any], timeout: float = 600.0) -> None:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110  # any condition; time is virtual
                await asyncio.sleep(0.01)


def text(message: Message) -> str:
    assert message.value is not None
    return message.value.decode()


async def echo(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
    """Derives each message's text."""
    async for message in stream:
        yield TriggerEvent(text(message))


async def skip(stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
    """Derives nothing."""
    async for _ in stream:
        if False:
            yield TriggerEvent(None)
