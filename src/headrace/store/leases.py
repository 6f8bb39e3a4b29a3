"""Fenced leases, by the database's clock."""

from __future__ import annotations

from collections.abc import Collection

import orjson
from sqlalchemy import Connection

from headrace.store.database import Database
from headrace.store.model import Lease

_ACQUIRE = """
INSERT INTO headrace_lease (name, owner, token, expires_at) VALUES (:name, :owner, 1, {now} + :seconds)
ON CONFLICT (name) DO UPDATE SET
    owner = excluded.owner, token = headrace_lease.token + 1, expires_at = excluded.expires_at
WHERE headrace_lease.expires_at <= {now} OR headrace_lease.owner = excluded.owner
RETURNING token
"""
# One that expired and that nobody took is still held: its token is the last.
_HELD = "(name, token) IN (SELECT value ->> 'name', CAST(value ->> 'token' AS bigint) FROM {rows})"
_RENEW = f"UPDATE headrace_lease SET expires_at = {{now}} + :seconds WHERE {_HELD}"
_RENEWED = f"SELECT {{gather}} FROM (SELECT name AS it FROM headrace_lease WHERE {_HELD}) AS held"
# The row stays, so that tokens never begin again.
_RELEASE = f"UPDATE headrace_lease SET expires_at = 0 WHERE {_HELD}"


class Leases:
    """Who runs what. A holder renews at a third of the length, and stops what it runs when the lease is not in the answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._words = database.sql.words

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        """Take a lease that is free or expired, with a new token; None while another owner holds it. `owner` names one
        process's life: the same owner gets its own lease again, with a new token."""
        statement = self._words.text(_ACQUIRE)
        parameters = {"name": name, "owner": owner, "seconds": seconds}
        token = await self._database.write(lambda connection: connection.execute(statement, parameters).scalar())
        return None if token is None else Lease(name, owner, token)

    async def renew(self, leases: Collection[Lease], seconds: float) -> set[str]:
        """Prolong them all, in one transaction; returns the names that are still held."""
        rows = _rows(leases)

        def job(connection: Connection) -> set[str]:
            connection.execute(self._words.text(_RENEW), {"rows": rows, "seconds": seconds})
            return set(orjson.loads(connection.execute(self._words.text(_RENEWED), {"rows": rows}).scalar_one()))

        return await self._database.write(job)

    async def release(self, leases: Collection[Lease]) -> None:
        """Give them up, so that others need not wait; without effect on those that were taken over."""
        statement = self._words.text(_RELEASE)
        await self._database.write(lambda connection: connection.execute(statement, {"rows": _rows(leases)}))


def _rows(leases: Collection[Lease]) -> str:
    return orjson.dumps([{"name": lease.name, "token": lease.token} for lease in leases]).decode()
