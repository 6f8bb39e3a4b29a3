"""The hot statements for PostgreSQL: one a call, made of CTEs. Rows are locked in the order of their keys or skipped when
locked, so replicas do not wait for each other in a circle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection

from headrace.store.model import StoredEvent
from headrace.store.schema import NOW
from headrace.store.sql.base import (
    EVENT_COLUMNS,
    Group,
    Mark,
    Stored,
    Words,
    as_json,
    by_priority,
    marks_as_json,
    stored_event,
)

CHANNEL = "headrace"
"""What LISTEN and NOTIFY meet on; the payload is the topic."""

_NOW = NOW["postgresql"]

# Ids are drawn in the order of submission, rows are inserted in the order of their keys. A forgotten unit is stored anew, one
# generation on. The statement sees none of its own rows but through RETURNING.
_INSERT_GROUP = f"""
WITH new_unit AS (
    INSERT INTO headrace_unit (trigger_id, message_id, stream, lane, published_at, batch, stored_at)
    SELECT t, m, s, l, p, 0, {_NOW}
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::double precision[]) AS row (t, m, s, l, p) ORDER BY t, m
    ON CONFLICT (trigger_id, message_id) DO UPDATE SET
        generation = headrace_unit.generation + 1, forgotten = false, stored_at = excluded.stored_at,
        stream = excluded.stream, lane = excluded.lane, published_at = excluded.published_at
    WHERE headrace_unit.forgotten
    RETURNING id, trigger_id, message_id, generation, stored_at
), derived AS (
    SELECT nextval('headrace_event_id_seq') AS id, t, m, i, k, d
    FROM unnest($6::text[], $7::text[], $8::integer[], $9::text[], $10::text[]) AS row (t, m, i, k, d)
), new_event AS (
    INSERT INTO headrace_event (id, unit_id, trigger_id, generation, idx, dedupe_key, payload, size, stored_at)
    SELECT derived.id, u.id, t, u.generation, i, k, d, octet_length(d), u.stored_at
    FROM derived JOIN new_unit u ON u.trigger_id = t AND u.message_id = m ORDER BY t, k, derived.id
    ON CONFLICT DO NOTHING
    RETURNING id
), new_dead_letter AS (
    INSERT INTO headrace_dead_letter
        (unit_id, trigger_id, cause, reason, traceback, attempts, source, size, content, stored_at)
    SELECT u.id, t, cause, reason, traceback, attempts, source, size, content, u.stored_at
    FROM json_to_recordset(CAST($11 AS json)) AS row (t text, m text, cause text, reason text, traceback text,
        attempts integer, source text, size integer, content text)
    JOIN new_unit u ON u.trigger_id = t AND u.message_id = m
), over AS (
    DELETE FROM headrace_filter_attempt f USING unnest($12::text[], $13::text[]) AS row (t, m)
    WHERE f.trigger_id = t AND f.message_id = m
)
SELECT (SELECT count(*) FROM new_unit), (SELECT count(*) FROM new_event),
    (SELECT count(pg_notify('{CHANNEL}', 'events')) FROM (SELECT FROM new_event LIMIT 1) AS any_event)
"""

_CLAIM = f"""
WITH ready AS (
    SELECT id, size, state, priority, owner, token, claimed_at FROM headrace_event
    WHERE state = 'pending' AND due_at IS NULL {{only}} ORDER BY priority DESC, id LIMIT $1 FOR UPDATE SKIP LOCKED
), due AS (
    SELECT id, size, state, priority, owner, token, claimed_at FROM headrace_event
    WHERE due_at <= {_NOW} AND state IN ('pending', 'dispatching') {{only}} ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
), picked AS (
    SELECT *, sum(size) OVER w - size AS bytes_before
    FROM (SELECT * FROM ready UNION ALL SELECT * FROM due) AS either WINDOW w AS (ORDER BY priority DESC, id)
    ORDER BY priority DESC, id LIMIT $1
), taken AS (
    SELECT * FROM picked WHERE bytes_before < $4
), expired AS (
    INSERT INTO headrace_attempt (event_id, token, owner, started_at, ended_at, outcome, answer)
    SELECT id, token, owner, claimed_at, {_NOW}, 'expired', '' FROM taken WHERE state = 'dispatching'
    ON CONFLICT DO NOTHING
)
UPDATE headrace_event AS e SET
    state = 'dispatching', owner = $2, token = e.token + 1, attempts = e.attempts + 1, claimed_at = {_NOW}, due_at = {_NOW} + $3
FROM taken, headrace_unit u WHERE e.id = taken.id AND u.id = e.unit_id
RETURNING {EVENT_COLUMNS}
"""
_ONLY = "AND trigger_id = ANY ($5)"

_MARK = f"""
WITH mark AS (
    SELECT * FROM json_to_recordset(CAST($1 AS json))
    AS row (id bigint, token bigint, outcome text, delay double precision, answer text)
), marked AS (
    UPDATE headrace_event AS e SET
        state = CASE mark.outcome WHEN 'delivered' THEN 'delivered' WHEN 'dead' THEN 'dead' ELSE 'pending' END,
        due_at = CASE mark.outcome WHEN 'retry' THEN {_NOW} + mark.delay END,
        settled_at = CASE WHEN mark.outcome IN ('delivered', 'dead') THEN {_NOW} END,
        answer = CASE mark.outcome WHEN 'released' THEN e.answer ELSE mark.answer END,
        attempts = e.attempts - CAST(mark.outcome = 'released' AS integer)
    FROM mark WHERE e.id = mark.id AND e.token = mark.token AND e.state = 'dispatching'
    RETURNING e.id, e.token, e.owner, e.claimed_at, mark.outcome, mark.answer AS answered
), recorded AS (
    INSERT INTO headrace_attempt (event_id, token, owner, started_at, ended_at, outcome, answer)
    SELECT id, token, owner, claimed_at, {_NOW}, outcome, answered FROM marked WHERE outcome <> 'released'
    ON CONFLICT DO NOTHING
)
SELECT id FROM marked
"""


class PostgresSql:
    """Implements `HotSql`."""

    words = Words(
        now=_NOW,
        rows="json_array_elements(CAST(:rows AS json)) AS each_row (value)",
        gather="CAST(coalesce(json_agg(it), '[]') AS text)",
    )

    def insert_group(self, connection: Connection, group: Group) -> Stored:
        units, events, attempts = _columns(group.units, 5), _columns(group.events, 5), _columns(group.attempts, 2)
        parameters = (*units, *events, as_json(group.dead_letters), *attempts)
        new_units, new_events, _ = connection.exec_driver_sql(_INSERT_GROUP, parameters).one()
        return Stored(new_units, new_events)

    def claim(
        self,
        connection: Connection,
        owner: str,
        limit: int,
        lease_seconds: float,
        triggers: Collection[str] | None,
        max_bytes: int,
    ) -> list[StoredEvent]:
        if triggers is None:
            rows = connection.exec_driver_sql(_CLAIM.format(only=""), (limit, owner, lease_seconds, max_bytes))
        else:
            rows = connection.exec_driver_sql(_CLAIM.format(only=_ONLY), (limit, owner, lease_seconds, max_bytes, list(triggers)))
        return sorted((stored_event(row) for row in rows), key=by_priority)

    def mark(self, connection: Connection, marks: Sequence[Mark]) -> set[int]:
        return set(connection.exec_driver_sql(_MARK, (marks_as_json(marks),)).scalars())

    def notify(self, connection: Connection, topic: str) -> None:
        connection.exec_driver_sql("SELECT pg_notify($1, $2)", (CHANNEL, topic))


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    """Rows as the arrays that `unnest` takes."""
    return list(zip(*rows, strict=True)) if rows else [[]] * width
