"""SQLite: one thread writes, one reads, each with a connection of its own.

WAL lets them go on side by side, `synchronous=FULL` makes a commit mean that it is on the disk, and `BEGIN IMMEDIATE` takes
the write lock at once, so that a transaction that has begun to read never has to be undone to write. Other processes (the
CLI beside a running `serve`) are waited for up to `busy_timeout`.

The `sqlite3` module gives up the GIL for every row it steps to and may wait 5 ms for it beside a busy event loop: what is
hot reads one row a statement, JSON where it must hold many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from headrace.errors import ConfigError, StoreUnavailable
from headrace.store.database.base import Database
from headrace.store.database.failures import translated
from headrace.store.sql.sqlite import SqliteSql

T = TypeVar("T")


class _Worker:
    """A thread and its connection, which is opened again after an error: the file may have been moved or replaced."""

    def __init__(self, engine: Engine, begin: str) -> None:
        self._engine = engine
        self._begin = begin
        self._connection: Connection | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-sqlite")
        self._is_closed = False

    async def run(self, job: Callable[[Connection], T]) -> T:
        if self._is_closed:
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._run, job)

    def _run(self, job: Callable[[Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
            with self._connection.begin():
                self._connection.exec_driver_sql(self._begin)
                return job(self._connection)
        except DBAPIError:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._disconnect)
        finally:
            self._executor.shutdown(wait=False)


class SqliteDatabase(Database):
    """A database file."""

    sql = SqliteSql()

    def __init__(self, path: str, *, busy_timeout: float) -> None:
        self.path = Path(path)
        self.url = f"sqlite:///{path}"
        engine = create_engine(
            URL.create("sqlite", database=path),
            poolclass=NullPool,
            hide_parameters=True,
            connect_args={"timeout": busy_timeout, "isolation_level": None},  # we say BEGIN ourselves
        )
        event.listen(engine, "connect", _set_pragmas)
        self._writer = _Worker(engine, "BEGIN IMMEDIATE")
        self._reader = _Worker(engine, "BEGIN")

    def check(self) -> None:
        """Raises `ConfigError` where there is no folder for the file."""
        if not self.path.parent.is_dir():
            raise ConfigError([f"store.url: the folder {self.path.parent} does not exist"])

    async def start(self, job: Callable[[Connection], T]) -> T:
        self.check()
        with translated(self.url):
            return await self._writer.run(job)

    async def write(self, job: Callable[[Connection], T]) -> T:
        with translated():
            return await self._writer.run(job)

    async def read(self, job: Callable[[Connection], T]) -> T:
        with translated():
            return await self._reader.run(job)

    async def aclose(self) -> None:
        await self._reader.aclose()
        await self._writer.aclose()  # last: closing the last connection folds the WAL into the file


def _set_pragmas(connection: Any, record: object) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
