"""The store: one database, opened and migrated, and its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Self, cast

from sqlalchemy import Connection, text

from headrace.store import migrate
from headrace.store.attempts import Attempts
from headrace.store.database import Database, open_database
from headrace.store.database.postgres import PostgresDatabase
from headrace.store.database.sqlite import SqliteDatabase
from headrace.store.dead_letters import DeadLetters
from headrace.store.events import Events
from headrace.store.filelock import FileLock
from headrace.store.leases import Leases
from headrace.store.model import Swept
from headrace.store.outbox import Outbox
from headrace.store.retention import DAY, sweep
from headrace.store.sealing import Sealer
from headrace.store.triggers import Triggers
from headrace.store.watch import listen

log = logging.getLogger(__name__)

Topic = Literal["events", "triggers"]


class Store:
    """One database. Every method of it and its parts is one short transaction, and raises `StoreUnavailable` when the database
    does not answer: nothing happened then, or, if only the answer was lost, doing it again is harmless."""

    def __init__(self, database: Database, sealer: Sealer, *, max_payload_bytes: int, close_timeout: float) -> None:
        """For `open`."""
        self.database = database
        self.sealer = sealer
        self.max_payload_bytes = max_payload_bytes
        self.close_timeout = close_timeout
        self.attempts = Attempts(database)
        self.triggers = Triggers(database, sealer)
        self.leases = Leases(database)
        self.outbox = Outbox(database)
        self.events = Events(database)
        self.dead_letters = DeadLetters(database, sealer)
        self.schema_before: str | None = None
        """The schema that was found when it was opened; None: the database was empty."""
        self.schema = ""
        """The schema it has now."""
        self._lock: FileLock | None = None
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        secret_keys: Sequence[str] = (),
        exclusive: bool = False,
        max_payload_bytes: int = 8 * 2**20,
        busy_timeout: float = 5.0,
        connect_timeout: float = 10.0,
        close_timeout: float = 10.0,
    ) -> Self:
        """Connect and migrate. `url`: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user:pass@host/db`.

        `exclusive` is for `serve`: on SQLite a second one on the same file gets `StoreInUse`; on PostgreSQL replicas share.
        Raises `ConfigError` (the URL or a key is wrong, the server refuses the credentials), `StoreUnavailable` (try again),
        `StoreTooNew`, `StoreInUse`.
        """
        sealer = Sealer(secret_keys)
        database = open_database(url, busy_timeout=busy_timeout, connect_timeout=connect_timeout)
        store = cls(database, sealer, max_payload_bytes=max_payload_bytes, close_timeout=close_timeout)
        try:
            if exclusive and isinstance(database, SqliteDatabase):
                database.check()
                store._lock = FileLock(Path(f"{database.path}.lock"))
                store._lock.acquire()
            store.schema_before, store.schema = await database.start(migrate.upgrade)
            await store.attempts.load()
        except BaseException:
            await store.aclose()
            raise
        return store

    async def aclose(self) -> None:
        """Release connections, threads and the file lock, within `close_timeout`. Harmless when it is closed already."""
        try:
            async with asyncio.timeout(self.close_timeout):
                if self._listener is not None:
                    self._listener.cancel()
                    await asyncio.wait({self._listener})
                await self.outbox.aclose()
                await self.database.aclose()
        except TimeoutError:
            log.warning("the store did not close within %g s", self.close_timeout)
        finally:
            if self._lock is not None:
                self._lock.release()

    @property
    def url(self) -> str:
        """The address without user and password."""
        return self.database.url

    def __repr__(self) -> str:
        return f"<Store {self.url}>"

    async def now(self) -> float:
        """The database's clock, in epoch seconds."""

        def job(connection: Connection) -> float:
            value: float = connection.execute(text(f"SELECT {self.database.sql.words.now}")).scalar_one()
            return value

        return await self.database.read(job)

    def watch(self, on_change: Callable[[Topic], None]) -> None:
        """Call `on_change` when some process stored events or changed a trigger, until `aclose`. Only PostgreSQL can tell
        (LISTEN/NOTIFY, on a connection of its own); where it cannot, this says so in the log. It is a shortcut and never a
        promise: whoever uses it polls as well. Call it once."""
        if isinstance(self.database, PostgresDatabase):
            callback = cast("Callable[[str], None]", on_change)
            self._listener = asyncio.create_task(listen(self.database, callback), name="headrace-listen")

    async def sweep(
        self,
        *,
        retention: float,
        dead_retention: float = 30 * DAY,
        dedupe_retention: float = 14 * DAY,
        batch: int = 500,
    ) -> Swept:
        """Delete the payloads of events delivered or purged `retention` seconds ago, of dead events and dead letters after
        `dead_retention`, and identities `dedupe_retention` after the last event of their unit was settled. In batches, each
        a short transaction; cancel at any time."""
        return await sweep(
            self.database,
            retention=retention,
            dead_retention=dead_retention,
            dedupe_retention=dedupe_retention,
            batch=batch,
        )
