"""What a driver's error means for us: try again, the content is refused, or the configuration is wrong.

Told apart by SQLSTATE and by SQLite's result codes, never by message texts. What is not known counts as "the database is
away": trying again loses nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

import asyncpg
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from headrace.errors import ConfigError, StoreUnavailable, Unstorable


class Failure(Enum):
    """What to do about an error."""

    CONFLICT = auto()
    """Two transactions were in each other's way and this one was undone: try again now."""
    AWAY = auto()
    """Try again later."""
    CONTENT = auto()
    """Not with this content."""
    MISCONFIGURED = auto()
    """Not with this address, user or database."""
    DEFECT = auto()
    """A statement that the database does not understand: ours is wrong, or somebody changed the schema."""


DRIVER_ERRORS = (
    DBAPIError,
    sqlite3.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
    TimeoutError,
    PoolTimeout,
    UnicodeEncodeError,
)
"""What the drivers, and SQLAlchemy around them, raise."""

_POSTGRES_CLASSES = {
    "22": Failure.CONTENT,
    "23": Failure.CONTENT,
    "54": Failure.CONTENT,
    "42": Failure.DEFECT,
    "40": Failure.CONFLICT,
    "28": Failure.MISCONFIGURED,
}
_POSTGRES_CODES = {"3D000": Failure.MISCONFIGURED, "3F000": Failure.MISCONFIGURED, "42501": Failure.MISCONFIGURED}
_SQLITE_CODES = {
    sqlite3.SQLITE_TOOBIG: Failure.CONTENT,
    sqlite3.SQLITE_CONSTRAINT: Failure.CONTENT,
    sqlite3.SQLITE_MISMATCH: Failure.CONTENT,
    sqlite3.SQLITE_NOTADB: Failure.MISCONFIGURED,
    sqlite3.SQLITE_ERROR: Failure.DEFECT,
}


def classify(error: BaseException) -> Failure:
    """Say what to do about a driver's error."""
    origin = _origin(error)
    if isinstance(origin, asyncpg.ClientConfigurationError):
        return Failure.MISCONFIGURED
    if isinstance(origin, ValueError | sqlite3.DataError):  # asyncpg's errors about parameters are ValueErrors too
        return Failure.CONTENT
    if isinstance(origin, sqlite3.Error):
        return _SQLITE_CODES.get(getattr(origin, "sqlite_errorcode", 0) & 0xFF, Failure.AWAY)
    state = getattr(origin, "sqlstate", None) or ""
    return _POSTGRES_CODES.get(state) or _POSTGRES_CLASSES.get(state[:2], Failure.AWAY)


@contextmanager
def translated(address: str | None = None) -> Iterator[None]:
    """Raise our errors instead of a driver's. Their texts have the database's own first line: no values, no password.

    A defect stays what it is: calling it an outage would hide it. `address`: of a database that is connected to for the first
    time; what is wrong with it is a `ConfigError` then. Later it is an outage, since it has been right before.
    """
    try:
        yield
    except DRIVER_ERRORS as error:
        failure = classify(error)
        if failure is Failure.DEFECT:
            raise
        if failure is Failure.CONTENT:
            raise Unstorable(f"the database refuses it: {describe(error)}") from None  # the chain may quote values
        if failure is Failure.MISCONFIGURED and address is not None:
            # The text of an unreadable address quotes it.
            reason = "its driver cannot read this address" if isinstance(error, ValueError) else describe(error)
            raise ConfigError([f"store.url: {address}: {reason}"]) from None
        raise StoreUnavailable(f"the database does not answer: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """One line about a driver's error. Details are left out, since they quote values; those of a conflict name locks only."""
    origin = _origin(error)
    text = str(origin.args[0]) if origin.args and isinstance(origin.args[0], str) else str(origin)
    line = text.strip().partition("\n")[0] or type(origin).__name__
    if isinstance(origin, asyncpg.TransactionRollbackError) and origin.detail:
        line = f"{line} ({' '.join(origin.detail.split())})"
    return line


def _origin(error: BaseException) -> BaseException:
    """The driver's own error inside what SQLAlchemy makes of it."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    cause = error.__cause__
    return cause if isinstance(cause, asyncpg.PostgresError | asyncpg.InterfaceError) and cause is not None else error
