"""Opening a store: migrations, one `serve` a file, and clear words for what is wrong."""

import asyncio
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from headrace.errors import ConfigError, StoreInUse, StoreTooNew, StoreUnavailable
from headrace.store import Store
from headrace.store.migrate import VERSION_TABLE
from headrace.store.schema import metadata

OpenStore = Callable[..., Awaitable[Store]]


async def test_the_migrations_make_the_schema_that_queries_rely_on(store: Store) -> None:
    """What `schema.py` says is what an empty database becomes."""

    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        found: list[Any] = compare_metadata(context, metadata)
        return found

    assert await store.database.read(differences) == []


async def test_a_second_start_finds_nothing_to_migrate(store: Store, open_store: OpenStore) -> None:
    """Migrating is done once; later starts look and go on."""
    assert store.schema_before is None
    assert store.schema
    again = await open_store()
    assert (again.schema_before, again.schema) == (store.schema, store.schema)


async def test_replicas_that_start_at_once_on_an_empty_database_all_come_up(open_store: OpenStore) -> None:
    """One migrates, the others wait for it."""
    stores = await asyncio.gather(*(open_store() for _ in range(4)))
    found = sorted(store.schema_before or "" for store in stores)
    assert found == ["", *[stores[0].schema] * 3]


async def test_a_store_of_a_newer_version_is_left_alone(store: Store, open_store: OpenStore) -> None:
    """An old Headrace says what to do, and changes nothing."""
    await store.database.write(lambda connection: connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")))
    with pytest.raises(StoreTooNew, match=r"schema 9999.*upgrade Headrace"):
        await open_store()


async def test_the_clock_is_the_databases(store: Store) -> None:
    """Times are epoch seconds; on one machine they agree with ours."""
    assert abs(await store.now() - time.time()) < 5


async def test_a_second_serve_on_a_file_is_refused_and_replicas_share_a_server(open_store: OpenStore, database_url: str) -> None:
    """One `serve` a SQLite file, until it ends; PostgreSQL takes many. The CLI may always look."""
    serving = await open_store(exclusive=True)
    await open_store()
    if database_url.startswith("sqlite"):
        with pytest.raises(StoreInUse, match=f"in use by process {os.getpid()}"):
            await open_store(exclusive=True)
        await serving.aclose()
    await open_store(exclusive=True)


async def test_a_killed_serve_leaves_no_lock(tmp_path: Path) -> None:
    """However a process dies, the next one may start at once."""
    url = f"sqlite:///{tmp_path / 'headrace.db'}"
    script = (
        "import asyncio, sys\n"
        "from headrace.store import Store\n"
        "async def main():\n"
        "    store = await Store.open(sys.argv[1], exclusive=True)\n"
        "    print('open', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    with pytest.raises(StoreInUse, match=f"by process {process.pid}"):
        await Store.open(url, exclusive=True)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await (await Store.open(url, exclusive=True)).aclose()


async def test_a_closed_store_says_so(store: Store) -> None:
    """A late call meets an error it can handle, and closing twice is harmless."""
    await store.aclose()
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        await store.outbox.backlog()
    await store.aclose()


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """Pointing at the wrong file is a mistake of the config, not an outage."""
    path = tmp_path / "notes.txt"
    path.write_text("not a database, and long enough to be looked at as one " * 100)
    with pytest.raises(ConfigError, match=r"store\.url: .*notes\.txt: file is not a database"):
        await Store.open(f"sqlite:///{path}")
    with pytest.raises(ConfigError, match=r"the folder .*nowhere does not exist"):
        await Store.open(f"sqlite:///{tmp_path / 'nowhere' / 'headrace.db'}")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("user", "database", "words"),
    [("headrace:hunter2", "postgres", "password authentication failed"), (None, "nowhere", 'database "nowhere" does not exist')],
)
async def test_what_a_server_refuses_is_a_config_error_without_the_password(
    postgresql: Any, user: str | None, database: str, words: str
) -> None:
    """Wrong credentials and a missing database are to be put right; the line says where and hides the password."""
    parts = urlsplit(postgresql.address)
    netloc = parts.netloc if user is None else f"{user}@{parts.netloc.rpartition('@')[2]}"
    with pytest.raises(ConfigError, match=r"store\.url: postgresql://127") as error:
        await Store.open(urlunsplit(parts._replace(netloc=netloc, path=f"/{database}")))
    assert words in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.integration
async def test_a_user_that_may_not_make_tables_is_told_at_the_start(postgresql: Any) -> None:
    """Missing permissions are to be put right: a config error, not an endless wait."""
    url = await asyncio.to_thread(postgresql.create_database)
    admin = await asyncpg.connect(url)
    role = f"weak_{uuid.uuid4().hex}"
    await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    parts = urlsplit(url)
    with pytest.raises(ConfigError, match=r"permission denied for schema|no schema has been selected"):
        await Store.open(urlunsplit(parts._replace(netloc=f"{role}:hunter2@{parts.netloc.rpartition('@')[2]}")))
    await admin.execute(f"DROP ROLE {role}")
    await admin.close()
    await asyncio.to_thread(postgresql.drop_database, url)


async def test_a_server_that_is_not_there_is_waited_for() -> None:
    """Nobody listens yet: try again later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(StoreUnavailable, match="the database does not answer") as error:
            await Store.open(f"postgresql://user:hunter2@127.0.0.1:{free.getsockname()[1]}/headrace")
    assert "hunter2" not in f"{error.value!r} {error.value.__cause__!r}"
