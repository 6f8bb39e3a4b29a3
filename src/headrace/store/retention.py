"""What is deleted, and when.

Payloads go first; identities stay for as long as their message may be delivered again, counted from when the last event of
the unit was settled, or a redelivery would be derived a second time. Everything is done in batches of short transactions,
each from an index, and each may be the last: a sweep that is cancelled goes on with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from sqlalchemy import Connection, and_, case, delete, exists, or_, select, text, tuple_, update

from headrace.store.database import Database
from headrace.store.model import EventState, Swept
from headrace.store.schema import KEPT, attempt, dead_letter, event, filter_attempt, now, unit

DAY: Final = 86400.0


async def sweep(database: Database, *, retention: float, dead_retention: float, dedupe_retention: float, batch: int) -> Swept:
    """Delete what has outlived its time, in seconds; see `Store.sweep`."""
    payloads = await _until_short(database, batch, lambda connection: _payloads(connection, retention, dead_retention, batch))
    dead_letters = await _until_short(database, batch, lambda connection: _dead_letters(connection, dead_retention, batch))
    attempts = await _until_short(database, batch, lambda connection: _filter_attempts(connection, dedupe_retention, batch))

    identities = 0
    after: tuple[float, int] = 0.0, 0
    while True:
        job = partial(_identities, dedupe_retention=dedupe_retention, dead_retention=dead_retention, after=after, batch=batch)
        seen, deleted = await database.write(job)
        identities += deleted
        if len(seen) < batch:
            return Swept(payloads, identities, dead_letters, attempts)
        after = seen[-1]


async def _until_short(database: Database, batch: int, job: Callable[[Connection], int]) -> int:
    total = 0
    while True:
        done = await database.write(job)
        total += done
        if done < batch:
            return total


def _payloads(connection: Connection, retention: float, dead_retention: float, batch: int) -> int:
    kept_for = case((event.c.state == EventState.DEAD, dead_retention), else_=retention)
    ids = (
        connection.execute(
            select(event.c.id)
            .where(
                text(KEPT), event.c.settled_at <= now() - min(retention, dead_retention), event.c.settled_at <= now() - kept_for
            )
            .order_by(event.c.settled_at)
            .limit(batch)
        )
        .scalars()
        .all()
    )
    if ids:
        connection.execute(update(event).where(event.c.id.in_(ids), event.c.settled_at.is_not(None)).values(payload=None))
        connection.execute(delete(attempt).where(attempt.c.event_id.in_(ids)))
    return len(ids)


def _dead_letters(connection: Connection, dead_retention: float, batch: int) -> int:
    old = select(dead_letter.c.id).where(dead_letter.c.stored_at <= now() - dead_retention).limit(batch)
    return connection.execute(delete(dead_letter).where(dead_letter.c.id.in_(old))).rowcount


def _filter_attempts(connection: Connection, dedupe_retention: float, batch: int) -> int:
    columns = filter_attempt.c.trigger_id, filter_attempt.c.message_id
    old = select(*columns).where(filter_attempt.c.updated_at <= now() - dedupe_retention).limit(batch)
    return connection.execute(delete(filter_attempt).where(tuple_(*columns).in_(old))).rowcount


def _identities(
    connection: Connection, dedupe_retention: float, dead_retention: float, after: tuple[float, int], batch: int
) -> tuple[Sequence[tuple[float, int]], int]:
    """Look at the next units by age, and delete those that are over; returns the units looked at, and how many went."""
    key = tuple_(unit.c.stored_at, unit.c.id)
    seen = [
        (stored_at, unit_id)
        for stored_at, unit_id in connection.execute(
            select(unit.c.stored_at, unit.c.id)
            .where(unit.c.stored_at <= now() - dedupe_retention, key > tuple_(*after))
            .order_by(unit.c.stored_at, unit.c.id)
            .limit(batch)
        )
    ]
    kept_for = case((event.c.state == EventState.DEAD, max(dead_retention, dedupe_retention)), else_=dedupe_retention)
    needed = exists().where(
        and_(event.c.unit_id == unit.c.id, or_(event.c.settled_at.is_(None), event.c.settled_at > now() - kept_for))
    )
    looked_at = exists().where(dead_letter.c.unit_id == unit.c.id)
    statement = delete(unit).where(unit.c.id.in_([unit_id for _, unit_id in seen]), ~needed, ~looked_at)
    return seen, connection.execute(statement).rowcount if seen else 0
