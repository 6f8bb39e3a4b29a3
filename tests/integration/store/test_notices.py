"""LISTEN and NOTIFY: a shortcut where the server offers it."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from headrace.store import Store, TriggerDefinition, TriggerState, Unit
from headrace.store.sql.postgres import PostgresSql

pytestmark = pytest.mark.integration
MakeUnit = Callable[..., Unit]


@pytest.fixture
async def database_url(postgresql: Any) -> Any:
    """PostgreSQL only: SQLite cannot tell."""
    url = await asyncio.to_thread(postgresql.create_database)
    yield url
    await asyncio.to_thread(postgresql.drop_database, url)


class Heard(asyncio.Queue[str]):
    async def until(self, topic: str) -> None:
        """Wait for a notice of the topic."""
        async with asyncio.timeout(30):
            while await self.get() != topic:
                pass


async def test_other_processes_hear_of_events_and_triggers(open_store: Any, write_to: Any, unit: MakeUnit) -> None:
    """A dispatcher next door is woken by what is stored here, a running serve by what the CLI does."""
    here, there = await open_store(), await open_store()
    await here.triggers.register([TriggerDefinition("t", "x.Y", {})])
    heard = Heard()
    there.watch(heard.put_nowait)
    writing = write_to(here)
    async with asyncio.timeout(30):
        while heard.empty():  # whether it listens yet cannot be seen from outside: speak until it hears
            await writing.store(unit(None, 1))
    await heard.until("events")
    await here.triggers.set_state("t", TriggerState.PAUSED)
    await heard.until("triggers")
    await writing.store(unit("again", 1))
    await heard.until("events")


async def test_a_redelivery_wakes_nobody(open_store: Any, write_to: Any, unit: MakeUnit) -> None:
    """There is nothing new to dispatch."""
    store = await open_store()
    heard = Heard()
    connection = await asyncpg.connect(store.database._dsn)
    await connection.add_listener("headrace", lambda connection, pid, channel, topic: heard.put_nowait(topic))
    writing = write_to(store)
    await writing.store(unit("m", 1))
    await writing.store(unit("m", 1))
    await store.triggers.register([TriggerDefinition("t", "x.Y", {})])
    await heard.until("triggers")
    assert heard.empty()
    await connection.close()


async def test_a_lost_connection_is_made_again(open_store: Any, write_to: Any, unit: MakeUnit) -> None:
    """Notices are heard again after the listening session was ended."""
    store = await open_store()
    heard = Heard()
    store.watch(heard.put_nowait)
    admin = await asyncpg.connect(store.database._dsn)

    async def speak_until_heard() -> None:
        async with asyncio.timeout(30):
            while heard.empty():
                await admin.execute("SELECT pg_notify('headrace', 'events')")
                await asyncio.sleep(0.02)

    await speak_until_heard()
    ended = await admin.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    assert ended == 1
    while not heard.empty():
        heard.get_nowait()
    await speak_until_heard()
    await admin.close()


async def test_where_notices_do_not_arrive_it_says_so_and_leaves_it_to_polling(
    open_store: Any, monkeypatch: Any, caplog: Any
) -> None:
    """Behind a transaction pooler LISTEN hears nothing: one line in the log, and no endless tries."""
    store: Store = await open_store()
    monkeypatch.setattr("headrace.store.watch._PROBE_TIMEOUT", 0.2)
    monkeypatch.setattr(PostgresSql, "notify", lambda *arguments: None)
    store.watch(lambda topic: None)
    assert store._listener is not None
    async with asyncio.timeout(30):
        await store._listener
    assert "polling instead" in caplog.text
    assert "headrace:headrace" not in caplog.text
