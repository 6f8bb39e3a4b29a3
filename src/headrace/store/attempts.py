"""How often filters failed on messages, kept over restarts."""

from __future__ import annotations

from sqlalchemy import text

from headrace.store.database import Database
from headrace.store.encoding import clean
from headrace.store.identity import fold
from headrace.store.units import Key

_BUMP = """
INSERT INTO headrace_filter_attempt (trigger_id, message_id, attempts, error, updated_at) VALUES (:t, :m, 1, :error, {now})
ON CONFLICT (trigger_id, message_id) DO UPDATE SET
    attempts = headrace_filter_attempt.attempts + 1, error = excluded.error, updated_at = excluded.updated_at
RETURNING attempts
"""
_GET = text("SELECT attempts FROM headrace_filter_attempt WHERE trigger_id = :t AND message_id = :m")
_CLEAR = text("DELETE FROM headrace_filter_attempt WHERE trigger_id = :t AND message_id = :m")
_KEYS = text("SELECT trigger_id, message_id FROM headrace_filter_attempt")


class Attempts:
    """How often a filter failed on a message. Kept over restarts, until the message's unit is stored.

    The keys counted by this process, or found at its start, are remembered, so that only the groups that have one of them
    clear it. One that another replica counted stays until retention takes it; its unit is stored, so nobody asks for it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.known: set[Key] = set()

    async def load(self) -> None:
        """Find what earlier processes counted."""
        rows = await self._database.read(lambda connection: connection.execute(_KEYS).all())
        self.known.update((trigger_id, message_id) for trigger_id, message_id in rows)

    async def bump(self, trigger_id: str, message_id: str, error: str) -> int:
        """Count one more, and return how many that makes."""
        key = trigger_id, fold(message_id)
        statement = self._database.sql.words.text(_BUMP)
        parameters = {"t": key[0], "m": key[1], "error": clean(error, 1000)}
        self.known.add(key)
        attempts: int = await self._database.write(lambda connection: connection.execute(statement, parameters).scalar_one())
        return attempts

    async def get(self, trigger_id: str, message_id: str) -> int:
        """How many there are."""
        parameters = {"t": trigger_id, "m": fold(message_id)}
        return await self._database.read(lambda connection: connection.execute(_GET, parameters).scalar()) or 0

    async def clear(self, trigger_id: str, message_id: str) -> None:
        """Forget them: the filter got through the message and derived nothing."""
        key = trigger_id, fold(message_id)
        await self._database.write(lambda connection: connection.execute(_CLEAR, {"t": key[0], "m": key[1]}))
        self.known.discard(key)
