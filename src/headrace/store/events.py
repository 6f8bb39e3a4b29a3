"""The user's side of stored events: looking at them, and changing their fate by hand.

What changes many is done in batches, each a short transaction, so that the writer and the dispatchers go on beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    TextClause,
    and_,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    update,
)

from headrace.store.database import Database
from headrace.store.identity import parse_identity
from headrace.store.model import Attempt, EventFilter, EventRecord, EventState
from headrace.store.schema import OPEN, attempt, event, now, unit
from headrace.store.sql.base import EVENT_COLUMNS, stored_event

EVERY_EVENT: Final = EventFilter()
_BATCH: Final = 1000

_e = event.alias("e")
_u = unit.alias("u")
_IS_OPEN = text(f"e.{OPEN}")
_newer = event.alias("newer")
_IS_SUPERSEDED = exists().where(_newer.c.unit_id == _e.c.unit_id, _newer.c.idx == _e.c.idx, _newer.c.generation > _e.c.generation)
_RECORDS = select(literal_column(EVENT_COLUMNS), _e.c.state, _e.c.due_at, _e.c.settled_at, _e.c.answer).join_from(
    _e, _u, _u.c.id == _e.c.unit_id
)


class Events:
    """Derived events. Those that are being dispatched are left alone by all that changes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, where: EventFilter = EVERY_EVENT, *, limit: int = 50, before: int | None = None) -> list[EventRecord]:
        """Newest first. The next page: `before` = the last one's id."""
        query = _RECORDS.where(_condition(where)).order_by(_e.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(_e.c.id < before)
        return [_record(row) for row in await self._database.read(lambda connection: connection.execute(query).all())]

    async def show(self, ref: int | str) -> EventRecord | None:
        """One event by id or identity, with the history of its attempts."""
        where = EventFilter(ids=[ref]) if isinstance(ref, int) else EventFilter(identities=[ref])

        def job(connection: Connection) -> EventRecord | None:
            if (row := connection.execute(_RECORDS.where(_condition(where))).first()) is None:
                return None
            attempts = connection.execute(select(attempt).where(attempt.c.event_id == row[0]).order_by(attempt.c.token))
            return _record(row, [Attempt(*attempted[1:]) for attempted in attempts])

        return await self._database.read(job)

    async def counts(self) -> dict[tuple[str, EventState], int]:
        """Events by trigger and state. Reads all of them: not for every second."""
        query = select(event.c.trigger_id, event.c.state, func.count()).group_by(event.c.trigger_id, event.c.state)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return {(trigger_id, EventState(state)): count for trigger_id, state, count in rows}

    async def retry(self, where: EventFilter, *, new_generation: bool = False) -> int:
        """Make dead events pending again, with fresh attempts; returns how many. `new_generation`: delivered ones too, under a
        new identity, so that a target takes them as new; of an event with several generations, the last. Those whose payload
        is deleted cannot be tried again."""
        eligible = and_(_e.c.state == EventState.DEAD, _e.c.payload.is_not(None))
        if new_generation:
            states = [EventState.DEAD, EventState.DELIVERED]
            eligible = and_(_e.c.state.in_(states), _e.c.payload.is_not(None), ~_IS_SUPERSEDED)
        fresh: dict[str, Any] = {"state": EventState.PENDING, "attempts": 0, "due_at": None, "settled_at": None}

        def job(connection: Connection, ids: Sequence[int]) -> int:
            values = fresh
            if new_generation:
                units = select(event.c.unit_id).where(event.c.id.in_(ids))
                connection.execute(update(unit).where(unit.c.id.in_(units)).values(generation=unit.c.generation + 1))
                raised = select(unit.c.generation).where(unit.c.id == event.c.unit_id).scalar_subquery()
                values = fresh | {"generation": raised}
            self._database.sql.notify(connection, "events")
            return connection.execute(update(event).where(event.c.id.in_(ids)).values(values)).rowcount

        return await self._in_batches(job, where, eligible)

    async def forget(self, where: EventFilter) -> int:
        """Let the messages of these events be derived again when they are delivered again, as a new generation. Their events
        that are pending or dead are purged. Returns how many messages."""

        def job(connection: Connection, ids: Sequence[int]) -> int:
            units = connection.execute(select(event.c.unit_id).where(event.c.id.in_(ids)).distinct()).scalars().all()
            forget_units(connection, units)
            return len(units)

        return await self._in_batches(job, where, _u.c.forgotten.is_(False))

    async def purge(self, where: EventFilter) -> int:
        """Take events out: never dispatched, payload deleted, identity kept; delivered ones only lose their payload. Returns
        how many."""

        def job(connection: Connection, ids: Sequence[int]) -> int:
            return _purge(connection, event.c.id.in_(ids))

        undelivered = _e.c.state.in_([EventState.PENDING, EventState.DEFERRED, EventState.DEAD])
        return await self._in_batches(
            job, where, or_(undelivered, and_(_e.c.state == EventState.DELIVERED, _e.c.payload.is_not(None)))
        )

    async def expire(self, max_age: float, *, trigger_id: str | None = None) -> int:
        """Mark pending events dead that were stored more than `max_age` seconds ago. Returns how many."""
        where = EventFilter(trigger_id=trigger_id, older_than=max_age)
        values = {
            "state": EventState.DEAD,
            "due_at": None,
            "settled_at": now(),
            "answer": f"older than {max_age:g} s, and not dispatched",
        }

        def job(connection: Connection, ids: Sequence[int]) -> int:
            return connection.execute(update(event).where(event.c.id.in_(ids)).values(values)).rowcount

        return await self._in_batches(job, where, and_(_IS_OPEN, _e.c.state == EventState.PENDING))

    async def _in_batches(
        self, job: Callable[[Connection, Sequence[int]], int], where: EventFilter, eligible: ColumnElement[bool]
    ) -> int:
        """Run the job on those that match, a batch a transaction; what it did makes them no longer eligible."""
        ids = (
            select(_e.c.id)
            .join_from(_e, _u, _u.c.id == _e.c.unit_id)
            .where(_condition(where), eligible)
            .order_by(_e.c.id)
            .limit(_BATCH)
            .with_for_update(of=_e)
        )

        def batch(connection: Connection) -> tuple[int, int]:
            found = connection.execute(ids).scalars().all()
            return len(found), job(connection, found) if found else 0

        total = 0
        while True:
            found, changed = await self._database.write(batch)
            total += changed
            if found < _BATCH:
                return total


def forget_units(connection: Connection, units: Sequence[int]) -> None:
    """Let these units be stored anew."""
    connection.execute(update(unit).where(unit.c.id.in_(units)).values(forgotten=True))
    _purge(connection, and_(event.c.unit_id.in_(units), event.c.state.in_([EventState.PENDING, EventState.DEAD])))
    # The keys are free for the next generation.
    connection.execute(update(event).where(event.c.unit_id.in_(units)).values(dedupe_key=None))


def _purge(connection: Connection, where: ColumnElement[bool]) -> int:
    delivered = event.c.state == EventState.DELIVERED
    values = {
        "payload": None,
        "state": case((delivered, EventState.DELIVERED), else_=EventState.PURGED),
        "due_at": None,
        "settled_at": case((delivered, event.c.settled_at), else_=now()),
    }
    return connection.execute(update(event).where(where).values(values)).rowcount


def _condition(where: EventFilter) -> ColumnElement[bool]:
    conditions: list[ColumnElement[bool] | TextClause] = []
    if where.ids is not None:
        conditions.append(_e.c.id.in_(where.ids))
    if where.identities is not None:
        conditions.append(or_(*(_is_identity(identity) for identity in where.identities), _NEVER))
    if where.trigger_id is not None:
        conditions.append(_e.c.trigger_id == where.trigger_id)
    if where.stream is not None:
        conditions.append(_u.c.stream == where.stream)
    if where.states is not None:
        conditions.append(_e.c.state.in_(where.states))
        if not {EventState.DELIVERED, EventState.PURGED}.intersection(where.states):
            conditions.append(_IS_OPEN)
    if where.older_than is not None:
        conditions.append(_e.c.stored_at <= now() - where.older_than)
    if where.newer_than is not None:
        conditions.append(_e.c.stored_at > now() - where.newer_than)
    return and_(true(), *conditions)


_NEVER = literal_column("1") == literal_column("0")


def _is_identity(identity: str) -> ColumnElement[bool]:
    if (parsed := parse_identity(identity)) is None:
        return _NEVER
    trigger_id, message_id, index, generation = parsed
    unit_id = select(unit.c.id).where(unit.c.trigger_id == trigger_id, unit.c.message_id == message_id).scalar_subquery()
    return and_(_e.c.unit_id == unit_id, _e.c.idx == index, _e.c.generation == generation)


def _record(row: Row[Any], history: Sequence[Attempt] = ()) -> EventRecord:
    return EventRecord(stored_event(row), EventState(row.state), row.due_at, row.settled_at, row.answer, tuple(history))
