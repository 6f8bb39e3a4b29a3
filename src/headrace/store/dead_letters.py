"""The messages given up, with their bytes as they came."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from headrace.store.database import Database
from headrace.store.events import forget_units
from headrace.store.model import DeadLetterRecord
from headrace.store.schema import dead_letter, unit
from headrace.store.sealing import Sealer, unpack_message

_RECORDS = select(dead_letter, unit.c.stream, unit.c.message_id, unit.c.published_at).join_from(dead_letter, unit)


class DeadLetters:
    """Messages given up for a trigger."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def find(
        self, *, trigger_id: str | None = None, cause: str | None = None, limit: int = 50, before: int | None = None
    ) -> list[DeadLetterRecord]:
        """Newest first, without message and traceback. The next page: `before` = the last one's id."""
        query = _RECORDS.order_by(dead_letter.c.id.desc()).limit(limit)
        if trigger_id is not None:
            query = query.where(dead_letter.c.trigger_id == trigger_id)
        if cause is not None:
            query = query.where(dead_letter.c.cause == cause)
        if before is not None:
            query = query.where(dead_letter.c.id < before)
        return [self._record(row) for row in await self._database.read(lambda connection: connection.execute(query).all())]

    async def show(self, id: int) -> DeadLetterRecord | None:
        """One, with its message and traceback. Raises `SecretKeyMissing`."""
        query = _RECORDS.where(dead_letter.c.id == id)
        row = await self._database.read(lambda connection: connection.execute(query).first())
        return None if row is None else self._record(row, whole=True)

    async def counts(self) -> dict[tuple[str, str], int]:
        """Dead letters by trigger and cause."""
        query = select(dead_letter.c.trigger_id, dead_letter.c.cause, func.count()).group_by(
            dead_letter.c.trigger_id, dead_letter.c.cause
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return {(trigger_id, cause): count for trigger_id, cause, count in rows}

    async def forget(self, ids: Collection[int]) -> int:
        """Let these messages be derived again when they are delivered again. The dead letters stay to be looked at. Returns how
        many."""

        def job(connection: Connection) -> int:
            query = select(unit.c.id).join_from(dead_letter, unit).where(dead_letter.c.id.in_(ids), unit.c.forgotten.is_(False))
            units = connection.execute(query.distinct()).scalars().all()
            forget_units(connection, units)
            return len(units)

        return await self._database.write(job)

    async def purge(self, ids: Collection[int]) -> int:
        """Delete message and traceback; what is left says that it was there, and a redelivery changes nothing. Returns how
        many."""
        statement = (
            update(dead_letter)
            .where(dead_letter.c.id.in_(ids), dead_letter.c.content.is_not(None) | dead_letter.c.traceback.is_not(None))
            .values(content=None, traceback=None)
        )
        return await self._database.write(lambda connection: connection.execute(statement).rowcount)

    def _record(self, row: Row[Any], *, whole: bool = False) -> DeadLetterRecord:
        return DeadLetterRecord(
            id=row.id,
            trigger_id=row.trigger_id,
            stream=row.stream,
            message_id=row.message_id,
            cause=row.cause,
            reason=row.reason,
            attempts=row.attempts,
            source=row.source,
            published_at=row.published_at,
            stored_at=row.stored_at,
            size=row.size,
            traceback=row.traceback if whole else None,
            message=unpack_message(self._sealer.unseal(row.content)) if whole and row.content is not None else None,
        )
