"""X2: the database goes away in every way it can. Nothing is lost, nothing is doubled, and who waits is told."""

import asyncio
import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, Engine, event, text

from headrace.errors import StoreUnavailable
from headrace.store import EventFilter, Store, Unit

MakeUnit = Callable[..., Unit]
ReadPayloads = Callable[[Store], Awaitable[list[Any]]]


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not claim():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.005)


async def test_x2_a_commit_whose_answer_was_lost_is_harmless(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """X2: a group that was stored, though we were told it was not, is stored again and changes nothing."""
    write = store.database.write
    lost: list[Any] = []

    async def losing(job: Any) -> Any:
        answer = await write(job)
        if len(lost) < 2:
            lost.append(answer)
            raise StoreUnavailable("the answer was lost")
        return answer

    store.database.write = losing  # type: ignore[method-assign]
    units = [unit("m", 1, 2), unit(None, "without an id"), unit("n", 3)]
    await writing.store(*units)
    assert writing.stored == units
    assert await payloads(store) == [1, 2, "without an id", 3]
    assert writing.available == [False, True]
    assert [answer.units for answer in lost] == [3, 0]


async def test_x2_closing_does_not_wait_for_a_store_that_is_away(store: Store, writing: Any, unit: MakeUnit) -> None:
    """X2: while the database is away a flush waits, and a writer that is told to stop stops."""

    async def away(job: Any) -> Any:
        raise StoreUnavailable("away")

    store.database.write = away  # type: ignore[method-assign]
    writing.submit(unit("m", 1))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writing.writer.flush(), 0.2)
    flushing = asyncio.create_task(writing.writer.flush())
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await writing.writer.aclose()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    assert writing.stored == []
    assert writing.writer.pending_units == 1


async def test_a_defect_is_loud_and_loses_nothing(store: Store, writing: Any, unit: MakeUnit, caplog: Any) -> None:
    """An error nobody thought of is logged with its traceback, counts as an outage, and the group is kept."""
    write = store.database.write
    errors = [ZeroDivisionError("unthought of")]

    async def defective(job: Any) -> Any:
        if errors:
            raise errors.pop()
        return await write(job)

    store.database.write = defective  # type: ignore[method-assign]
    await writing.store(unit("m", 1))
    assert len(writing.stored) == 1
    assert writing.available == [False, True]
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'headrace.db'}"


async def test_x2_a_locked_file_is_waited_for(sqlite_url: str, tmp_path: Path, write_to: Any, unit: MakeUnit) -> None:
    """X2: another process holds the write lock: said once, waited out, stored in order."""
    store = await Store.open(sqlite_url, busy_timeout=0.02)
    writing = write_to(store)
    other = sqlite3.connect(tmp_path / "headrace.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    units = [unit(str(n), n) for n in range(20)]
    for each in units:
        writing.submit(each)
        await asyncio.sleep(0.01)
    await until(lambda: writing.available == [False])
    with pytest.raises(StoreUnavailable, match="database is locked"):
        await store.attempts.bump("t", "m", "error")
    assert await store.outbox.next_due() is None  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    await writing.writer.flush()
    assert writing.available == [False, True]
    assert writing.stored == units
    await store.aclose()


@pytest.fixture
def pragma() -> Iterator[list[str]]:
    """A pragma that every new SQLite connection is given, while it is in the list."""
    pragmas: list[str] = []

    def on_connect(connection: Any, record: object) -> None:
        for statement in pragmas:
            connection.execute(statement)

    event.listen(Engine, "connect", on_connect)
    yield pragmas
    event.remove(Engine, "connect", on_connect)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA max_page_count = 1", "database or disk is full"),
        ("PRAGMA query_only = ON", "attempt to write a readonly database"),
    ],
    ids=["disk full", "read-only"],
)
async def test_x2_a_full_disk_and_a_read_only_file_are_waited_for(
    sqlite_url: str, pragma: list[str], statement: str, words: str, write_to: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """X2: until there is space again, or the file may be written, units wait, and then each is stored once."""
    store = await Store.open(sqlite_url)
    writing = write_to(store)
    await writing.store(unit("before", "before"))
    pragma.append(statement)  # a limit below the present size is the present size
    await store.database.write(lambda connection: connection.exec_driver_sql(statement).close())
    units = [unit(str(n), "x" * 10_000) for n in range(5)]
    writing.submit(*units)
    await until(lambda: writing.available == [False])
    assert writing.writer.pending_units == 5
    with pytest.raises(StoreUnavailable, match=words):
        await asyncio.gather(*(store.attempts.bump("t", str(n), "x" * 1000) for n in range(50)))
    pragma.clear()
    await writing.writer.flush()
    assert writing.stored[1:] == units
    assert await payloads(store) == ["before", *["x" * 10_000] * 5]
    await store.aclose()


@pytest.mark.integration
async def test_x2_a_server_restart_is_waited_for(own_server: Any, write_to: Any, unit: MakeUnit, payloads: ReadPayloads) -> None:
    """X2: PostgreSQL is killed under load and comes back: nothing lost, nothing twice, the order kept."""
    server = await asyncio.to_thread(own_server, "postgresql")
    url = await asyncio.to_thread(server.create_database)
    store = await Store.open(url)
    writing = write_to(store, max_group=20)
    units = [unit(str(n), n) for n in range(300)]
    for n, each in enumerate(units):
        writing.submit(each)
        await asyncio.sleep(0)
        if n == 100:
            await asyncio.to_thread(server.kill)
    await until(lambda: writing.available == [False])
    with pytest.raises(StoreUnavailable):
        await store.outbox.claim("me", 1, 60)
    await asyncio.to_thread(server.restart)
    await writing.writer.flush()
    assert writing.stored == units
    assert await payloads(store) == list(range(300))
    assert writing.available == [False, True]
    await store.aclose()


END_OTHER_SESSIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.mark.integration
async def test_x2_cut_connections_are_replaced(postgresql: Any, write_to: Any, unit: MakeUnit, payloads: ReadPayloads) -> None:
    """X2: an administrator ends our sessions again and again; the stream of units goes on."""
    url = await asyncio.to_thread(postgresql.create_database)
    store = await Store.open(url)
    writing = write_to(store, max_group=4)
    admin = await asyncpg.connect(url)
    for n in range(200):
        writing.submit(unit(str(n), n))
        if n % 40 == 20:
            await admin.execute(END_OTHER_SESSIONS)
        await asyncio.sleep(0)
    await writing.writer.flush()
    assert [each.message_id for each in writing.stored] == [str(n) for n in range(200)]
    assert await payloads(store) == list(range(200))
    await admin.close()
    await store.aclose()
    await asyncio.to_thread(postgresql.drop_database, url)


@pytest.mark.integration
async def test_x2_a_deadlock_is_undone_and_tried_again(postgresql: Any, caplog: Any) -> None:
    """X2: of two transactions in each other's way PostgreSQL ends one; it is run again, and its caller sees nothing of it."""
    caplog.set_level("INFO", logger="headrace.store")
    url = await asyncio.to_thread(postgresql.create_database)
    store = await Store.open(url)
    for name in ("a", "b"):
        await store.leases.acquire(name, "me", 60)
    runs = 0

    def lock_both(*names: str) -> Callable[[Connection], None]:
        def job(connection: Connection) -> None:
            nonlocal runs
            runs += 1
            for name in names:
                connection.execute(text("UPDATE headrace_lease SET token = token + 1 WHERE name = :name"), {"name": name})
                connection.execute(text("SELECT pg_sleep(0.2)"))

        return job

    await asyncio.gather(store.database.write(lock_both("a", "b")), store.database.write(lock_both("b", "a")))
    assert runs == 3
    assert re.search(r"is tried again: deadlock detected \(Process \d+ waits for ShareLock", caplog.text)
    tokens = [lease.token for name in "ab" if (lease := await store.leases.acquire(name, "me", 60))]
    assert tokens == [4, 4]
    await store.aclose()
    await asyncio.to_thread(postgresql.drop_database, url)


@pytest.mark.integration
async def test_x2_a_server_that_takes_no_writes_is_waited_for(postgresql: Any, write_to: Any, unit: MakeUnit) -> None:
    """X2: after a failover to a replica every write is refused until the address leads to the primary again."""
    url = await asyncio.to_thread(postgresql.create_database)
    store = await Store.open(url)
    writing = write_to(store)
    admin = await asyncpg.connect(url)

    async def set_read_only(value: str) -> None:
        name = await admin.fetchval("SELECT current_database()")
        await admin.execute("SET default_transaction_read_only = off")
        await admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {value}")
        await admin.execute(END_OTHER_SESSIONS)

    await set_read_only("on")
    writing.submit(unit("m", 1))
    await until(lambda: writing.available == [False])
    assert await store.events.find(EventFilter()) == []
    await set_read_only("off")
    await writing.writer.flush()
    assert writing.available == [False, True]
    assert len(writing.stored) == 1
    await admin.close()
    await store.aclose()
    await asyncio.to_thread(postgresql.drop_database, url)
