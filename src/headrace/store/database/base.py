"""The interface, and the way from a URL to a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeVar

from sqlalchemy import Connection
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from headrace.errors import ConfigError
from headrace.store.sql import HotSql

T = TypeVar("T")


class Database(ABC):
    """Runs jobs, each in a transaction of its own: committed when the job returns, undone when it raises."""

    sql: ClassVar[HotSql]
    url: str
    """Without password: fit for logs."""

    @abstractmethod
    async def start(self, job: Callable[[Connection], T]) -> T:
        """Connect, and run the first job, as `write` does. Raises `ConfigError` as well: the address, the credentials or the
        permissions are wrong."""

    @abstractmethod
    async def write(self, job: Callable[[Connection], T]) -> T:
        """Run a job that changes something. May run it again after a conflict with another transaction.

        Raises `StoreUnavailable`, `Unstorable`, and what the job itself raises. Cancelled, the job may still be done.
        """

    @abstractmethod
    async def read(self, job: Callable[[Connection], T]) -> T:
        """Run a job that only reads; never in the way of `write`. Raises as `write` does."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release everything. May wait for the job under way: give it a deadline. Jobs that come later are refused with
        `StoreUnavailable`."""


def open_database(url: str, *, busy_timeout: float, connect_timeout: float) -> Database:
    """Choose the database by the URL, without connecting. Raises `ConfigError`."""
    from headrace.store.database.postgres import PostgresDatabase
    from headrace.store.database.sqlite import SqliteDatabase

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        # Not quoted: it may hold a password.
        raise ConfigError(
            ["store.url: expected sqlite:///file or postgresql://user:password@host/database (special characters in %XX form)"]
        ) from None
    if parts.drivername == "sqlite":
        return SqliteDatabase(_sqlite_path(parts), busy_timeout=busy_timeout)
    if parts.drivername in ("postgresql", "postgres"):
        shown = f"postgresql://{parts.host or ''}{f':{parts.port}' if parts.port else ''}/{parts.database or ''}"
        return PostgresDatabase(url, shown, connect_timeout=connect_timeout)
    raise ConfigError([f"store.url: expected a sqlite:/// or postgresql:// address, and it begins with {parts.drivername}://"])


def _sqlite_path(url: URL) -> str:
    if not url.database or url.database == ":memory:":
        raise ConfigError(["store.url: expected a file (sqlite:///headrace.db): a store in memory would lose what it promised"])
    if url.query:
        raise ConfigError([f"store.url: a sqlite address has no options, and this one has {', '.join(url.query)}"])
    return url.database
