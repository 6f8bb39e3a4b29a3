"""LISTEN on PostgreSQL: hears at once what other processes stored or changed.

A shortcut only. Everybody who is told polls as well, so a notice that gets lost costs a second and nothing else. Behind a
transaction pooler LISTEN is accepted and then never heard of, so each connection is tried with a notice of our own first.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable
from typing import Any, Final

from headrace.errors import StoreError
from headrace.store.database.failures import DRIVER_ERRORS, describe
from headrace.store.database.postgres import PostgresDatabase
from headrace.store.sql.postgres import CHANNEL

log = logging.getLogger(__name__)

_PROBE_TIMEOUT: Final = 3.0
_PING_EVERY: Final = 30.0  # seconds; a firewall drops connections that are silent for long
_MAX_BACKOFF: Final = 30.0


async def listen(database: PostgresDatabase, on_change: Callable[[str], None]) -> None:
    """Call `on_change` with the topic of each notice, until cancelled; returns when notices cannot be had here."""
    backoff = 0.5
    while True:
        try:
            if not await _listen_once(database, on_change):
                log.warning("LISTEN/NOTIFY does not reach us at %s (a transaction pooler?): polling instead", database.url)
                return
            backoff = 0.5
        except (*DRIVER_ERRORS, StoreError) as error:
            log.info("lost the connection that listens for notices: %s", describe(error))
        await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
        backoff = min(backoff * 2, _MAX_BACKOFF)


async def _listen_once(database: PostgresDatabase, on_change: Callable[[str], None]) -> bool:
    """Listen until the connection is lost; False if what is sent is not heard."""
    probe = f"probe {uuid.uuid4().hex}"
    heard, lost = asyncio.Event(), asyncio.Event()

    def on_notice(connection: Any, pid: int, channel: str, topic: str) -> None:
        if topic == probe:
            heard.set()
        elif not topic.startswith("probe "):
            on_change(topic)

    connection = await database.open_connection()
    try:
        connection.add_termination_listener(lambda connection: lost.set())
        await connection.add_listener(CHANNEL, on_notice)
        await database.write(lambda connection: database.sql.notify(connection, probe))
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT):
                await heard.wait()
        except TimeoutError:
            return False
        while not lost.is_set():
            try:
                async with asyncio.timeout(_PING_EVERY):
                    await lost.wait()
            except TimeoutError:
                await connection.execute("SELECT 1")
        return True
    finally:
        connection.terminate()
