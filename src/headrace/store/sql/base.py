"""What the hot statements take and give, on both databases."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import orjson
from sqlalchemy import Connection, TextClause, text

from headrace.store.identity import event_identity
from headrace.store.model import StoredEvent

EVENT_COLUMNS = (
    "e.id, e.trigger_id, u.stream, u.message_id, e.idx, e.generation, e.payload, e.dedupe_key, u.lane, u.published_at, "
    "e.stored_at, e.priority, e.pool, e.pool_slots, e.attempts, e.owner, e.token"
)
"""Of an event `e` and its unit `u`, in the order `stored_event` takes."""

UnitRow = tuple[str, str, str | None, str | None, float | None]
"""Trigger id, message key, stream, lane, published at."""
EventRow = tuple[str, str, int, str | None, str]
"""Trigger id, message key, index, dedupe key, payload."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group commit, in the order of submission. No unit is in it twice."""

    units: Sequence[UnitRow]
    events: Sequence[EventRow]
    dead_letters: Sequence[Mapping[str, Any]]
    """`t` and `m` name the unit; the rest are columns of the table."""
    attempts: Sequence[tuple[str, str]]
    """Trigger ids and message keys whose filter attempts are over."""


class Stored(NamedTuple):
    """What was new in a group."""

    units: int
    events: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a claim: what became of the event, under the token of that claim."""

    id: int
    token: int
    outcome: Literal["delivered", "retry", "dead", "released"]
    delay: float | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """What the two databases say differently, for statements that are otherwise the same."""

    now: str
    rows: str
    """The table of the JSON array in the parameter `rows`; its column is `value`."""
    gather: str
    """The aggregate that puts a column `it` into one JSON array."""

    def text(self, statement: str) -> TextClause:
        """Fill in `{now}`, `{rows}` and `{gather}`."""
        return text(statement.format(now=self.now, rows=self.rows, gather=self.gather))


class HotSql(Protocol):
    """Each method is a part of the caller's transaction."""

    words: Words

    def insert_group(self, connection: Connection, group: Group) -> Stored:
        """Insert the units that are not stored yet, and their events."""

    def claim(
        self,
        connection: Connection,
        owner: str,
        limit: int,
        lease_seconds: float,
        triggers: Collection[str] | None,
        max_bytes: int,
    ) -> list[StoredEvent]:
        """Claim what is due, by priority, then age, until `max_bytes` of payload are reached."""

    def mark(self, connection: Connection, marks: Sequence[Mark]) -> set[int]:
        """End claims; returns the ids of those that were still held. No claim is in it twice."""

    def notify(self, connection: Connection, topic: str) -> None:
        """Tell those who listen, when the transaction commits."""


def as_json(rows: Sequence[Any]) -> str:
    """A JSON array: a parameter that holds many rows."""
    return orjson.dumps(rows).decode()


def marks_as_json(marks: Sequence[Mark]) -> str:
    """Marks as objects with their fields' names."""
    return as_json(
        [
            {"id": mark.id, "token": mark.token, "outcome": mark.outcome, "delay": mark.delay, "answer": mark.answer}
            for mark in marks
        ]
    )


def stored_event(row: Sequence[Any]) -> StoredEvent:
    """Build an event from `EVENT_COLUMNS`."""
    (event_id, trigger_id, stream, message_id, index, generation, payload, dedupe_key, lane, published_at) = row[:10]
    (stored_at, priority, pool, pool_slots, attempts, owner, token) = row[10:17]
    return StoredEvent(
        id=event_id,
        identity=event_identity(trigger_id, message_id, index, generation),
        trigger_id=trigger_id,
        stream=stream,
        message_id=message_id,
        index=index,
        generation=generation,
        payload=None if payload is None else orjson.loads(payload),
        has_payload=payload is not None,
        dedupe_key=dedupe_key,
        lane=lane,
        published_at=published_at,
        stored_at=stored_at,
        priority=priority,
        pool=pool,
        pool_slots=pool_slots,
        attempt=attempts,
        owner=owner,
        token=token,
    )


def by_priority(event: StoredEvent) -> tuple[int, int]:
    """The order of claims."""
    return -event.priority, event.id
