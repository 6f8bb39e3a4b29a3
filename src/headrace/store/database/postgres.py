"""PostgreSQL through asyncpg, also behind a transaction pooler.

Such a pooler hands each transaction to any server connection. So every job is an explicit transaction, statements are
prepared without a name (which lasts as long as the transaction needs it), and nothing is set up for a session.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final, TypeVar

import asyncpg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from headrace.errors import StoreUnavailable
from headrace.store.database.base import Database
from headrace.store.database.failures import DRIVER_ERRORS, Failure, classify, describe, translated
from headrace.store.sql.postgres import PostgresSql

T = TypeVar("T")

log = logging.getLogger(__name__)

_CONFLICT_TRIES: Final = 6
_COMMAND_TIMEOUT: Final = 60.0  # seconds; a server that went away without a word is noticed after this
_POOL_SIZE: Final = 5


class _PlainConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """SQLAlchemy sets up JSON codecs on each new connection. We pass and read JSON as text, and these round trips happen
    outside a transaction, where a pooler may answer the second half of one from another server."""

    async def set_type_codec(self, *args: Any, **options: Any) -> None:
        pass


class PostgresDatabase(Database):
    """A PostgreSQL database."""

    sql = PostgresSql()

    def __init__(self, dsn: str, shown: str, *, connect_timeout: float) -> None:
        self.url = shown
        self._dsn = dsn
        self._connect_timeout = connect_timeout
        self._is_closed = False
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            hide_parameters=True,
            pool_size=_POOL_SIZE,
            max_overflow=0,
            pool_timeout=_COMMAND_TIMEOUT,
            connect_args={
                "async_creator_fn": self._connect,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: "",
            },
        )

    async def _connect(self, *args: Any, **options: Any) -> Any:
        return await self.open_connection(connection_class=_PlainConnection)

    async def open_connection(self, **options: Any) -> Any:
        """A connection of asyncpg's own, outside the pool. Raises asyncpg's errors and `OSError`."""
        return await asyncpg.connect(
            self._dsn,
            timeout=self._connect_timeout,
            command_timeout=_COMMAND_TIMEOUT,
            statement_cache_size=0,
            server_settings={"application_name": "headrace"},
            **options,
        )

    async def start(self, job: Callable[[Connection], T]) -> T:
        with translated(self.url):
            return await self._retry(job)

    async def write(self, job: Callable[[Connection], T]) -> T:
        with translated():
            return await self._retry(job)

    read = write

    async def _retry(self, job: Callable[[Connection], T]) -> T:
        """Run the job, and again after conflicts, a few times."""
        for tried in range(1, _CONFLICT_TRIES):
            try:
                return await self._run(job)
            except DRIVER_ERRORS as error:
                if classify(error) is not Failure.CONFLICT:
                    raise
                log.info("a transaction was undone, and is tried again: %s", describe(error))
            await asyncio.sleep(random.uniform(0.005, 0.02) * 2**tried)
        return await self._run(job)

    async def _run(self, job: Callable[[Connection], T]) -> T:
        if self._is_closed:  # a disposed engine would connect again
            raise StoreUnavailable("the store is closed")
        async with self._engine.begin() as connection:
            return await connection.run_sync(job)

    async def aclose(self) -> None:
        self._is_closed = True
        await self._engine.dispose()
