"""The registered triggers. Every change gets the next revision, in the order of commits, so that a running `serve` can ask
for what changed since the last it has seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, Row, insert, select, update

from headrace.store import encoding
from headrace.store.database import Database
from headrace.store.model import TriggerDefinition, TriggerRecord, TriggerState
from headrace.store.schema import now, revision, trigger
from headrace.store.sealing import Sealer

T = TypeVar("T")

_MAX_ID_LENGTH = 200
_MAX_KWARGS_BYTES = 2**20


class Triggers:
    """The registered triggers, and what users made of them. Raises `SecretKeyMissing` where kwargs cannot be read."""

    def __init__(self, database: Database, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer

    async def register(self, definitions: Sequence[TriggerDefinition]) -> list[TriggerRecord]:
        """Add or update; returns them in the same order. An unchanged trigger keeps its state and revision; a changed one
        that had finished or failed is active again; paused and removed stay what the user made them.

        Raises `Unstorable` for kwargs that are not JSON, `ValueError` for an id that is empty, longer than 200 characters or
        not printable.
        """
        rows: list[dict[str, Any]] = []
        for definition in definitions:
            if not (definition.trigger_id.isprintable() and 0 < len(definition.trigger_id) <= _MAX_ID_LENGTH):
                raise ValueError(f"a trigger's id is 1 to {_MAX_ID_LENGTH} printable characters, not {definition.trigger_id!r}")
            name = f"kwargs of trigger {definition.trigger_id}"
            kwargs = encoding.encode(dict(definition.kwargs), limit=_MAX_KWARGS_BYTES, name=name)
            rows.append({"class_path": definition.class_path, "kwargs": kwargs, "stream": definition.stream})
        ids = [definition.trigger_id for definition in definitions]

        def job(connection: Connection) -> list[TriggerRecord]:
            _lock(connection)  # before reading: another replica may be registering the same
            found = {row.trigger_id: row for row in connection.execute(select(trigger).where(trigger.c.trigger_id.in_(ids)))}
            for trigger_id, row in zip(ids, rows, strict=True):
                self._save(connection, trigger_id, row, found.get(trigger_id))
            return self._records(connection, trigger.c.trigger_id.in_(ids))

        by_id = {record.definition.trigger_id: record for record in await self._write(job)}
        return [by_id[trigger_id] for trigger_id in ids]

    def _save(self, connection: Connection, trigger_id: str, row: dict[str, Any], found: Row[Any] | None) -> None:
        values = {**row, "kwargs": self._sealer.seal(row["kwargs"])}
        if found is None:
            values |= {"state": TriggerState.ACTIVE, "created_at": now(), "updated_at": now(), "revision": _next(connection)}
            connection.execute(insert(trigger).values(trigger_id=trigger_id, **values))
            return
        if self._is_changed(found, row):
            values |= {"revision": _next(connection), "updated_at": now()}
            if found.state in (TriggerState.FINISHED, TriggerState.FAILED):
                values |= {"state": TriggerState.ACTIVE, "reason": None}
        # Saved even if nothing changed: the first of the secret keys may be a new one.
        connection.execute(update(trigger).where(trigger.c.trigger_id == trigger_id).values(values))

    def _is_changed(self, found: Row[Any], row: dict[str, Any]) -> bool:
        if (found.class_path, found.stream) != (row["class_path"], row["stream"]):
            return True
        opened = self._sealer.try_unseal(found.kwargs)
        return opened is None or orjson.loads(opened) != orjson.loads(row["kwargs"])

    async def all(self) -> list[TriggerRecord]:
        """All, by id, the removed ones too."""
        return await self._database.read(lambda connection: self._records(connection))

    async def get(self, trigger_id: str) -> TriggerRecord:
        """One. Raises `LookupError` for an unknown trigger."""
        records = await self._database.read(lambda connection: self._records(connection, trigger.c.trigger_id == trigger_id))
        if not records:
            raise LookupError(f"there is no trigger {trigger_id!r}")
        return records[0]

    async def set_state(
        self,
        trigger_id: str,
        state: TriggerState,
        reason: str | None = None,
        *,
        only_from: Collection[TriggerState] | None = None,
    ) -> TriggerRecord:
        """Pause, resume, finish, fail or remove, and return what is the case now. `only_from`: no change from other states,
        so that what a user did meanwhile wins. Raises `LookupError` for an unknown trigger."""
        reason = None if reason is None else encoding.clean(reason, 4000)

        def job(connection: Connection) -> None:
            _lock(connection)
            found = connection.execute(select(trigger.c.state).where(trigger.c.trigger_id == trigger_id)).scalar()
            if found is not None and found != state and (only_from is None or found in only_from):
                values = {"state": state, "reason": reason, "updated_at": now(), "revision": _next(connection)}
                connection.execute(update(trigger).where(trigger.c.trigger_id == trigger_id).values(values))

        await self._write(job)
        return await self.get(trigger_id)

    async def changed_since(self, revision: int) -> list[TriggerRecord]:
        """Those changed after that revision, by revision: keep the last one's for the next call. Cheap when there are none."""
        records = await self._database.read(lambda connection: self._records(connection, trigger.c.revision > revision))
        return sorted(records, key=lambda record: record.revision)

    async def _write(self, job: Callable[[Connection], T]) -> T:
        def notifying(connection: Connection) -> T:
            result = job(connection)
            self._database.sql.notify(connection, "triggers")
            return result

        return await self._database.write(notifying)

    def _records(self, connection: Connection, *where: Any) -> list[TriggerRecord]:
        rows = connection.execute(select(trigger).where(*where).order_by(trigger.c.trigger_id))
        return [
            TriggerRecord(
                definition=TriggerDefinition(
                    row.trigger_id, row.class_path, orjson.loads(self._sealer.unseal(row.kwargs)), row.stream
                ),
                state=TriggerState(row.state),
                reason=row.reason,
                revision=row.revision,
                created_at=row.created_at,
                updated_at=row.updated_at,
            )
            for row in rows
        ]


def _lock(connection: Connection) -> None:
    """Wait for other changes of triggers to commit: revisions then become visible in their order."""
    connection.execute(select(revision.c.last).with_for_update())


def _next(connection: Connection) -> int:
    taken: int = connection.execute(update(revision).values(last=revision.c.last + 1).returning(revision.c.last)).scalar_one()
    return taken
