"""From a URL to a database, and from a driver's error to ours."""

import sqlite3

import asyncpg
import pytest
from sqlalchemy.exc import DBAPIError

from headrace.errors import ConfigError, StoreUnavailable, Unstorable
from headrace.store.database import Database, open_database
from headrace.store.database.failures import Failure, classify, translated


def open_(url: str) -> Database:
    return open_database(url, busy_timeout=1, connect_timeout=1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "headrace.db",
        "mysql://user:hunter2@host/db",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///x.db?mode=ro",
        "postgresql://user:hunter2@host:port/db",
    ],
)
def test_a_wrong_address_is_a_config_error_without_its_password(url: str) -> None:
    """The mistake is named by its key, and the password in it is not repeated."""
    with pytest.raises(ConfigError, match=r"store\.url") as error:
        open_(url)
    assert "hunter2" not in str(error.value)


async def test_an_address_is_shown_without_user_and_password() -> None:
    """What logs show of a PostgreSQL address holds no secret, wherever the URL had it."""
    database = open_("postgresql://user:hunter2@db.example:5433/headrace?password=hunter2&sslmode=require")
    assert database.url == "postgresql://db.example:5433/headrace"
    assert "hunter2" not in repr(vars(database).get("url"))
    await database.aclose()


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("as told")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (sqlite_error(sqlite3.SQLITE_BUSY), Failure.AWAY),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), Failure.AWAY),
        (sqlite_error(sqlite3.SQLITE_FULL), Failure.AWAY),
        (sqlite_error(sqlite3.SQLITE_READONLY_DBMOVED), Failure.AWAY),
        (sqlite_error(sqlite3.SQLITE_IOERR_FSYNC), Failure.AWAY),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), Failure.AWAY),
        (sqlite_error(sqlite3.SQLITE_TOOBIG), Failure.CONTENT),
        (sqlite_error(sqlite3.SQLITE_CONSTRAINT_NOTNULL), Failure.CONTENT),
        (sqlite_error(sqlite3.SQLITE_NOTADB), Failure.MISCONFIGURED),
        (sqlite_error(sqlite3.SQLITE_ERROR), Failure.DEFECT),
        (asyncpg.DeadlockDetectedError("x"), Failure.CONFLICT),
        (asyncpg.SerializationError("x"), Failure.CONFLICT),
        (asyncpg.AdminShutdownError("x"), Failure.AWAY),
        (asyncpg.CannotConnectNowError("x"), Failure.AWAY),
        (asyncpg.TooManyConnectionsError("x"), Failure.AWAY),
        (asyncpg.DiskFullError("x"), Failure.AWAY),
        (asyncpg.ReadOnlySQLTransactionError("x"), Failure.AWAY),
        (asyncpg.LockNotAvailableError("x"), Failure.AWAY),
        (asyncpg.ConnectionDoesNotExistError("x"), Failure.AWAY),
        (asyncpg.InterfaceError("connection is closed"), Failure.AWAY),
        (ConnectionRefusedError("x"), Failure.AWAY),
        (TimeoutError(), Failure.AWAY),
        (asyncpg.UntranslatableCharacterError("x"), Failure.CONTENT),
        (asyncpg.ProgramLimitExceededError("x"), Failure.CONTENT),
        (asyncpg.NotNullViolationError("x"), Failure.CONTENT),
        (asyncpg.InvalidPasswordError("x"), Failure.MISCONFIGURED),
        (asyncpg.InvalidCatalogNameError("x"), Failure.MISCONFIGURED),
        (asyncpg.InsufficientPrivilegeError("x"), Failure.MISCONFIGURED),
        (asyncpg.ClientConfigurationError("x"), Failure.MISCONFIGURED),
        (asyncpg.UndefinedTableError("x"), Failure.DEFECT),
    ],
    ids=repr,
)
def test_x2_errors_are_told_apart_by_their_codes(error: Exception, failure: Failure) -> None:
    """X2: an outage, a conflict, refused content, a wrong config and a defect are five different things."""
    assert classify(error) is failure
    assert classify(DBAPIError("SELECT 1", None, error)) is failure


def test_an_outage_and_refused_content_are_our_errors_without_values() -> None:
    """Callers see one class for each thing they can do; what databases quote of values is left out."""
    with pytest.raises(StoreUnavailable, match="the database does not answer: as told"), translated():
        raise sqlite_error(sqlite3.SQLITE_BUSY)
    detailed = asyncpg.CheckViolationError("refused\nDETAIL:  the row has hunter2")
    with pytest.raises(Unstorable) as refusal, translated():
        raise detailed
    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_a_wrong_password_is_a_config_error_at_the_start_and_an_outage_later() -> None:
    """What has worked before is waited for; what never worked is to be put right."""
    with pytest.raises(ConfigError, match=r"store\.url: postgresql://host/db: no such user"), translated("postgresql://host/db"):
        raise asyncpg.InvalidPasswordError("no such user")
    with pytest.raises(StoreUnavailable), translated():
        raise asyncpg.InvalidPasswordError("no such user")


def test_a_defect_stays_what_it_is() -> None:
    """A statement that the database does not understand is not waited out as an outage."""
    with pytest.raises(asyncpg.UndefinedTableError), translated():
        raise asyncpg.UndefinedTableError("x")
