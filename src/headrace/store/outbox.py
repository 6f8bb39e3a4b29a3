"""The dispatcher's side of stored events: claims, which are leases, and the marks that end them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection

import orjson
from sqlalchemy import Connection

from headrace.store.batching import Batcher
from headrace.store.database import Database
from headrace.store.encoding import clean
from headrace.store.model import Backlog, StoredEvent
from headrace.store.schema import OPEN
from headrace.store.sql import Mark

_MAX_CLAIM_BYTES = 16 * 2**20
_MAX_ANSWER = 500  # characters
_MAX_MARKS = 500  # of one transaction

_HELD = """
state = 'dispatching' AND (id, token) IN (SELECT CAST(value ->> 'id' AS bigint), CAST(value ->> 'token' AS bigint) FROM {rows})
"""
_RENEW = f"UPDATE headrace_event SET due_at = {{now}} + :seconds WHERE {_HELD}"
_RENEWED = f"SELECT {{gather}} FROM (SELECT id AS it FROM headrace_event WHERE {_HELD}) AS held"
_NEXT_DUE = """
SELECT CASE WHEN EXISTS (SELECT 1 FROM headrace_event WHERE state = 'pending' AND due_at IS NULL) THEN 0.0
    ELSE (SELECT min(due_at) FROM headrace_event WHERE due_at IS NOT NULL) - {now} END
"""
_BACKLOG = f"""
SELECT state, trigger_id, count(*), {{now}} - min(stored_at) FROM headrace_event WHERE {OPEN} GROUP BY state, trigger_id
"""


class Outbox:
    """Claims and marks. A claim is a lease with a token: whatever a dispatcher does under an older one has no effect, and it
    is told so. Marks that come while a transaction of marks is under way are stored together by the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._words = database.sql.words
        self._mark = Batcher(self._store_marks, limit=_MAX_MARKS)

    async def claim(
        self,
        owner: str,
        limit: int,
        lease_seconds: float,
        *,
        triggers: Collection[str] | None = None,
        max_bytes: int = _MAX_CLAIM_BYTES,
    ) -> list[StoredEvent]:
        """Take up to `limit` events that are due, by priority, then age; also those whose claim expired. They are this
        owner's for `lease_seconds`, and no one else's. `triggers`: of these only. `max_bytes`: no more once their payloads
        have reached it, so at least one."""
        sql = self._database.sql
        return await self._database.write(
            lambda connection: sql.claim(connection, owner, limit, lease_seconds, triggers, max_bytes)
        )

    async def renew(self, events: Collection[StoredEvent], lease_seconds: float) -> set[int]:
        """Prolong claims; returns the ids still held. What is missing was taken over or ended by hand: cancel the call."""
        rows = orjson.dumps([{"id": event.id, "token": event.token} for event in events]).decode()

        def job(connection: Connection) -> set[int]:
            connection.execute(self._words.text(_RENEW), {"rows": rows, "seconds": lease_seconds})
            return set(orjson.loads(connection.execute(self._words.text(_RENEWED), {"rows": rows}).scalar_one()))

        return await self._database.write(job)

    async def mark_delivered(self, event: StoredEvent, answer: str = "") -> bool:
        """The target has it. False: the claim was lost, another has it now, and this had no effect. So for all marks."""
        return await self._mark(Mark(event.id, event.token, "delivered", answer=clean(answer, _MAX_ANSWER)))

    async def mark_retry(self, event: StoredEvent, delay: float, answer: str) -> bool:
        """Not this time: pending again in `delay` seconds."""
        return await self._mark(Mark(event.id, event.token, "retry", delay, clean(answer, _MAX_ANSWER)))

    async def mark_dead(self, event: StoredEvent, answer: str) -> bool:
        """Never: given up."""
        return await self._mark(Mark(event.id, event.token, "dead", answer=clean(answer, _MAX_ANSWER)))

    async def release(self, events: Collection[StoredEvent]) -> None:
        """Give claims back untried: pending at once, the attempt is not counted."""
        await asyncio.gather(*(self._mark(Mark(event.id, event.token, "released")) for event in events))

    async def next_due(self) -> float | None:
        """Seconds until the next event is due (a backoff or a claim ends; 0 if one is due now); None: nothing waits."""
        due = await self._database.read(lambda connection: connection.execute(self._words.text(_NEXT_DUE)).scalar())
        return None if due is None else max(0.0, due)

    async def backlog(self) -> Backlog:
        """What waits."""
        rows = await self._database.read(lambda connection: connection.execute(self._words.text(_BACKLOG)).all())
        totals: Counter[str] = Counter()
        for state, _, count, _ in rows:
            totals[state] += count
        pending = [row for row in rows if row.state == "pending"]
        return Backlog(
            pending=totals["pending"],
            dispatching=totals["dispatching"],
            deferred=totals["deferred"],
            dead=totals["dead"],
            oldest_pending_age=max((age for *_, age in pending), default=None),
            pending_by_trigger={trigger_id: count for _, trigger_id, count, _ in pending},
        )

    async def aclose(self) -> None:
        """Wait for the marks under way; cancelled, give them up."""
        await self._mark.aclose()

    async def _store_marks(self, marks: list[Mark]) -> list[bool]:
        first: dict[tuple[int, int], Mark] = {}
        for mark in marks:
            first.setdefault((mark.id, mark.token), mark)
        sql = self._database.sql
        held = await self._database.write(lambda connection: sql.mark(connection, list(first.values())))
        return [mark.id in held and first[mark.id, mark.token] is mark for mark in marks]
