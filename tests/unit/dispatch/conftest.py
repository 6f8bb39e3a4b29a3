"""An outbox in memory whose leases run by the loop's clock, and targets that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.dispatch import DispatchObserver, Target, TargetConfig
from headrace.errors import StoreUnavailable
from headrace.store import EventFilter, StoredEvent, TriggerDefinition, TriggerRecord, TriggerState


def make_event(id: int = 1, trigger_id: str = "eu-orders", **changes: Any) -> StoredEvent:
    event = StoredEvent(
        id=id,
        identity=f"{trigger_id}:orders/0/{id}/0:0",
        trigger_id=trigger_id,
        stream="orders",
        message_id=f"orders/0/{id}/0",
        index=0,
        generation=0,
        payload={"n": id},
        has_payload=True,
        dedupe_key=None,
        lane=None,
        published_at=None,
        stored_at=0.0,
        priority=1,
        pool="default_pool",
        pool_slots=1,
        attempt=1,
    )
    return replace(event, **changes)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Row:
    event: StoredEvent
    state: str = "pending"
    due_at: float = 0.0  # of a claimed one: when its lease ends
    token: int = 0
    attempts: int = 0
    owner: str | None = None
    answers: list[tuple[float, str, str]] = field(default_factory=list)
    """When, what became of the attempt, and the answer."""


class FakeStore:
    """Keeps the promises of `headrace.store.Outbox`; `away` makes it unavailable, `before` runs before each call."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.away = False
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.calls: list[tuple[float, str]] = []
        self.released: list[str] = []
        self.registered: list[str] = []
        self.largest_claims: dict[str, int] = {}

    @property
    def outbox(self) -> FakeStore:
        return self

    @property
    def triggers(self) -> FakeStore:
        return self

    @property
    def events(self) -> FakeStore:
        return self

    def add(self, count: int = 1, trigger_id: str = "eu-orders", **changes: Any) -> list[Row]:
        rows = []
        for _ in range(count):
            number = len(self.rows) + 1
            self.rows[number] = row = Row(make_event(number, trigger_id, **changes))
            rows.append(row)
        return rows

    def states(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows.values():
            found[row.state] = found.get(row.state, 0) + 1
        return found

    async def settled(self, state: str = "delivered") -> None:
        """Wait until all rows are in that state."""
        while set(self.states()) != {state}:  # noqa: ASYNC110  # in virtual time it costs nothing
            await asyncio.sleep(0.01)

    async def claim(
        self, owner: str, limit: int, lease_seconds: float, *, triggers: Collection[str] | None = None
    ) -> list[StoredEvent]:
        await self._called("claim")
        claimed = []
        for row in sorted(self.rows.values(), key=lambda row: row.event.id):
            due = row.state in ("pending", "dispatching") and row.due_at <= now()
            if len(claimed) < limit and due and (triggers is None or row.event.trigger_id in triggers):
                if row.state == "dispatching":
                    row.answers.append((now(), "expired", ""))
                row.state, row.due_at, row.owner = "dispatching", now() + lease_seconds, owner
                row.token += 1
                row.attempts += 1
                claimed.append(replace(row.event, token=row.token, owner=owner, attempt=row.attempts))
        return claimed

    async def renew(self, events: Collection[StoredEvent], lease_seconds: float) -> set[int]:
        await self._called("renew")
        kept = {event.id for event in events if self._held(event) is not None}
        for held in kept:
            self.rows[held].due_at = now() + lease_seconds
        return kept

    async def mark_delivered(self, event: StoredEvent, answer: str = "") -> bool:
        return await self._mark(event, "delivered", "delivered", 0.0, answer)

    async def mark_retry(self, event: StoredEvent, delay: float, answer: str) -> bool:
        return await self._mark(event, "retry", "pending", delay, answer)

    async def mark_dead(self, event: StoredEvent, answer: str) -> bool:
        return await self._mark(event, "dead", "dead", 0.0, answer)

    async def release(self, events: Collection[StoredEvent]) -> None:
        await self._called("release")
        for event in events:
            if row := self._held(event):
                row.state, row.due_at = "pending", now()
                row.attempts -= 1
                self.released.append(event.identity)

    async def all(self) -> list[TriggerRecord]:
        await self._called("all")
        return [
            TriggerRecord(TriggerDefinition(trigger_id, "x:Y", {}), TriggerState.ACTIVE, None, 1, 0.0, 0.0)
            for trigger_id in self.registered
        ]

    async def find(self, where: EventFilter, *, limit: int) -> list[Any]:
        await self._called("find")
        wanted = [
            row for row in self.rows.values() if row.event.trigger_id == where.trigger_id and row.state in (where.states or ())
        ]
        return wanted[:limit]

    async def _mark(self, event: StoredEvent, outcome: str, state: str, delay: float, answer: str) -> bool:
        await self._called(f"mark_{outcome}")
        row = self._held(event)
        if row is None:
            return False
        row.answers.append((now(), outcome, answer))
        row.state, row.due_at = state, now() + delay
        return True

    def _held(self, event: StoredEvent) -> Row | None:
        row = self.rows[event.id]
        return row if row.state == "dispatching" and row.token == event.token else None

    async def _called(self, name: str) -> None:
        self.calls.append((now(), name))
        if self.before is not None:
            await self.before(name)
        if self.away:
            raise StoreUnavailable("the database does not answer")


class FakeTarget(Target):
    """Calls `action` with each event; counts what runs at once."""

    kind = "fake"

    def __init__(self, action: Callable[[StoredEvent], Awaitable[str | None]] | None = None, **config: Any) -> None:
        super().__init__(TargetConfig(**config))
        self.action = action
        self.calls: list[tuple[float, StoredEvent]] = []
        self.running = 0
        self.most_running = 0
        self.cancelled = 0
        self.closed = 0

    async def deliver(self, event: StoredEvent) -> str | None:
        self.calls.append((now(), event))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self.action(event) if self.action is not None else "ok"
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def aclose(self) -> None:
        self.closed += 1


class CountingObserver(DispatchObserver):
    def __init__(self) -> None:
        self.outcomes: list[tuple[str, str]] = []
        self.seconds: list[float] = []
        self.given_back = 0
        self.without_target: list[frozenset[str]] = []

    def attempted(self, trigger_id: str, kind: str, outcome: str, seconds: float) -> None:
        self.outcomes.append((trigger_id, outcome))
        self.seconds.append(seconds)

    def released(self, count: int) -> None:
        self.given_back += count

    def untargeted(self, trigger_ids: Collection[str]) -> None:
        self.without_target.append(frozenset(trigger_ids))


@pytest.fixture
def event() -> Callable[..., StoredEvent]:
    """Makes stored events."""
    return make_event


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def observer() -> CountingObserver:
    return CountingObserver()


@pytest.fixture
def fake_target() -> type[FakeTarget]:
    return FakeTarget
