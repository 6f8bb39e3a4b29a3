"""Behind PgBouncer in transaction mode: each transaction may run on another server connection."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.store import EventFilter, EventState, Store, TriggerDefinition, Unit
from headrace.testing.brokers.process import LocalProcess, find_program, free_port
from headrace.testing.brokers.server import ProgramMissing
from headrace.triggers.base import TriggerEvent

pytestmark = pytest.mark.integration

SETTINGS = """
[databases]
{database} = host={host} port={port} dbname={database} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""


@pytest.fixture
async def pooled_url(postgresql: Any) -> AsyncIterator[str]:
    """An empty database behind a pooler that has two server connections."""
    try:
        program = find_program("pgbouncer", purpose="Debian's package pgbouncer brings it")
    except ProgramMissing as error:
        pytest.skip(str(error))
    url = await asyncio.to_thread(postgresql.create_database)
    parts = urlsplit(url)
    database, port = parts.path.removeprefix("/"), free_port()
    process = LocalProcess("pgbouncer", [program, "pgbouncer.ini"], user="nobody" if os.geteuid() == 0 else None)
    (process.folder / "pgbouncer.ini").write_text(
        SETTINGS.format(
            database=database,
            host=parts.hostname,
            port=parts.port,
            user=parts.username,
            password=parts.password,
            listen_port=port,
        )
    )
    process.start()
    try:
        async with asyncio.timeout(20):
            while not await answers(port):
                assert process.is_running(), process.log()
                await asyncio.sleep(0.02)
        yield f"postgresql://anybody:anything@127.0.0.1:{port}/{database}"
    finally:
        process.close()
        await asyncio.to_thread(postgresql.drop_database, url)


async def answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_everything_works_without_named_statements_and_sessions(pooled_url: str, write_to: Any, caplog: Any) -> None:
    """Many transactions at once over two server connections: none meets a statement or a setting of another."""
    stores = [await Store.open(pooled_url) for _ in range(3)]
    writers = [write_to(store, max_group=10) for store in stores]
    for n in range(300):
        writers[n % 3].submit(Unit("t", "orders", str(n), [TriggerEvent(n, f"key {n}")]))
    stores[0].watch(lambda topic: None)

    async def churn(store: Store, name: str) -> None:
        for n in range(6):
            await store.attempts.bump("t", f"{name} {n}", "error")
            await store.triggers.register([TriggerDefinition(name, "x.Y", {"n": n})])
            lease = await store.leases.acquire(name, name, 60)
            assert lease is not None
            assert await store.leases.renew([lease], 60) == {name}
            for event in await store.outbox.claim(name, 5, 60):
                assert await store.outbox.mark_delivered(event)
            await store.events.find(EventFilter(states=[EventState.PENDING]), limit=5)

    await asyncio.gather(*(churn(store, f"{n} {m}") for n, store in enumerate(stores) for m in range(3)))
    for writing in writers:
        await writing.writer.flush()
        assert writing.available == []
        assert len(writing.stored) == 100
    assert sum((await stores[0].events.counts()).values()) == 300
    assert stores[0]._listener is not None
    async with asyncio.timeout(30):
        await stores[0]._listener
    assert "polling instead" in caplog.text
    for store in stores:
        await store.aclose()
