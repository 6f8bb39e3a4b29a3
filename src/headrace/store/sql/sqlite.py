"""The hot statements for SQLite. One writer at a time makes them simple; what they read comes back as one row of JSON."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Any

import orjson
from sqlalchemy import Connection

from headrace.store.model import StoredEvent
from headrace.store.schema import NOW
from headrace.store.sql.base import (
    EVENT_COLUMNS,
    EventRow,
    Group,
    Mark,
    Stored,
    Words,
    as_json,
    by_priority,
    marks_as_json,
    stored_event,
)

_NOW = NOW["sqlite"]

# `WHERE true` keeps SQLite from reading ON CONFLICT as a join's condition. A forgotten unit is stored anew, one generation on.
_INSERT_UNITS = f"""
INSERT INTO headrace_unit (trigger_id, message_id, stream, lane, published_at, batch, stored_at)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, ?1, {_NOW} FROM json_each(?2) WHERE true
ON CONFLICT (trigger_id, message_id) DO UPDATE SET
    generation = generation + 1, forgotten = false, batch = excluded.batch, stored_at = excluded.stored_at,
    stream = excluded.stream, lane = excluded.lane, published_at = excluded.published_at
WHERE forgotten
"""
# The payloads come end to end as one blob: inside JSON they would be escaped here and parsed there.
_INSERT_EVENTS = """
INSERT INTO headrace_event (unit_id, trigger_id, generation, idx, dedupe_key, payload, size, stored_at)
SELECT u.id, u.trigger_id, u.generation, value ->> 2, value ->> 3,
    CAST(substr(?3, value ->> 4, value ->> 5) AS text), value ->> 5, u.stored_at
FROM json_each(?2) JOIN headrace_unit u ON u.trigger_id = value ->> 0 AND u.message_id = value ->> 1 AND u.batch = ?1
WHERE true ON CONFLICT DO NOTHING
"""
_INSERT_DEAD_LETTERS = """
INSERT INTO headrace_dead_letter
    (unit_id, trigger_id, cause, reason, traceback, attempts, source, size, content, stored_at)
SELECT u.id, u.trigger_id, value ->> 'cause', value ->> 'reason', value ->> 'traceback', value ->> 'attempts',
    value ->> 'source', value ->> 'size', value ->> 'content', u.stored_at
FROM json_each(?2) JOIN headrace_unit u ON u.trigger_id = value ->> 't' AND u.message_id = value ->> 'm' AND u.batch = ?1
"""
_CLEAR_ATTEMPTS = """
DELETE FROM headrace_filter_attempt
WHERE (trigger_id, message_id) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1))
"""

_PICK = """
SELECT json_group_array(json_array(id, size, state = 'dispatching')) FROM (
    SELECT * FROM (SELECT id, size, state, priority FROM headrace_event
        WHERE state = 'pending' AND due_at IS NULL {only} ORDER BY priority DESC, id LIMIT ?1)
    UNION ALL
    SELECT * FROM (SELECT id, size, state, priority FROM headrace_event
        WHERE due_at <= {now} AND state IN ('pending', 'dispatching') {only} ORDER BY due_at LIMIT ?1)
    ORDER BY priority DESC, id LIMIT ?1)
"""
_ONLY = "AND trigger_id IN (SELECT value FROM json_each(?2))"
_EXPIRED = f"""
INSERT INTO headrace_attempt (event_id, token, owner, started_at, ended_at, outcome, answer)
SELECT id, token, owner, claimed_at, {_NOW}, 'expired', '' FROM headrace_event
WHERE id IN (SELECT value FROM json_each(?1)) ON CONFLICT DO NOTHING
"""
_CLAIM = f"""
UPDATE headrace_event SET
    state = 'dispatching', owner = ?1, token = token + 1, attempts = attempts + 1, claimed_at = {_NOW}, due_at = {_NOW} + ?2
WHERE id IN (SELECT value FROM json_each(?3))
"""
_CLAIMED = f"""
SELECT json_group_array(json_array({EVENT_COLUMNS})) FROM headrace_event e JOIN headrace_unit u ON u.id = e.unit_id
WHERE e.id IN (SELECT value FROM json_each(?1))
"""

_HELD = "e.id = value ->> 'id' AND e.token = value ->> 'token' AND e.state = 'dispatching'"
_SELECT_HELD = f"SELECT json_group_array(e.id) FROM json_each(?1) JOIN headrace_event e ON {_HELD}"
_INSERT_ATTEMPTS = f"""
INSERT INTO headrace_attempt (event_id, token, owner, started_at, ended_at, outcome, answer)
SELECT e.id, e.token, e.owner, e.claimed_at, {_NOW}, value ->> 'outcome', value ->> 'answer'
FROM json_each(?1) JOIN headrace_event e ON {_HELD} WHERE value ->> 'outcome' <> 'released' ON CONFLICT DO NOTHING
"""
_MARK = f"""
UPDATE headrace_event AS e SET
    state = CASE value ->> 'outcome' WHEN 'delivered' THEN 'delivered' WHEN 'dead' THEN 'dead' ELSE 'pending' END,
    due_at = CASE value ->> 'outcome' WHEN 'retry' THEN {_NOW} + (value ->> 'delay') END,
    settled_at = CASE WHEN value ->> 'outcome' IN ('delivered', 'dead') THEN {_NOW} END,
    answer = CASE value ->> 'outcome' WHEN 'released' THEN answer ELSE value ->> 'answer' END,
    attempts = attempts - (value ->> 'outcome' = 'released')
FROM json_each(?1) WHERE {_HELD}
"""


class SqliteSql:
    """Implements `HotSql`."""

    words = Words(now=_NOW, rows="json_each(:rows)", gather="json_group_array(it)")

    def insert_group(self, connection: Connection, group: Group) -> Stored:
        batch = random.getrandbits(62)
        units = connection.exec_driver_sql(_INSERT_UNITS, (batch, as_json(group.units))).rowcount
        events = connection.exec_driver_sql(_INSERT_EVENTS, (batch, *_events(group.events))).rowcount if units else 0
        if group.dead_letters:
            connection.exec_driver_sql(_INSERT_DEAD_LETTERS, (batch, as_json(group.dead_letters)))
        if group.attempts:
            connection.exec_driver_sql(_CLEAR_ATTEMPTS, (as_json(group.attempts),))
        return Stored(units, events)

    def claim(
        self,
        connection: Connection,
        owner: str,
        limit: int,
        lease_seconds: float,
        triggers: Collection[str] | None,
        max_bytes: int,
    ) -> list[StoredEvent]:
        pick = _PICK.format(now=_NOW, only="" if triggers is None else _ONLY)
        parameters: tuple[Any, ...] = (limit,) if triggers is None else (limit, as_json(list(triggers)))
        picked = _json(connection, pick, *parameters)
        if not picked:
            return []
        totals = accumulate(size for _, size, _ in picked)
        picked = [pick for pick, total in zip(picked, totals, strict=True) if total - pick[1] < max_bytes]
        if expired := [event_id for event_id, _, is_expired in picked if is_expired]:
            connection.exec_driver_sql(_EXPIRED, (as_json(expired),))
        ids = as_json([event_id for event_id, _, _ in picked])
        connection.exec_driver_sql(_CLAIM, (owner, lease_seconds, ids))
        return sorted(map(stored_event, _json(connection, _CLAIMED, ids)), key=by_priority)

    def mark(self, connection: Connection, marks: Sequence[Mark]) -> set[int]:
        document = marks_as_json(marks)
        held = set(_json(connection, _SELECT_HELD, document))
        if held:
            connection.exec_driver_sql(_INSERT_ATTEMPTS, (document,))
            connection.exec_driver_sql(_MARK, (document,))
        return held

    def notify(self, connection: Connection, topic: str) -> None:
        """Nobody can listen: other processes poll."""


def _events(events: Sequence[EventRow]) -> tuple[str, bytes]:
    """The rows with the place of their payloads, counted from 1, and the payloads."""
    payloads = [payload.encode() for *_, payload in events]
    sizes = list(map(len, payloads))
    places = accumulate(sizes, initial=1)
    rows = [(*event[:4], place, size) for event, place, size in zip(events, places, sizes, strict=False)]
    return as_json(rows), b"".join(payloads)


def _json(connection: Connection, statement: str, *parameters: Any) -> Any:
    return orjson.loads(connection.exec_driver_sql(statement, parameters).scalar_one())
