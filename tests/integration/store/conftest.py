"""A store on each database, a writer that remembers what it said, and a clock that can be moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest
from sqlalchemy import Connection, Float, update

from headrace.store import GroupReport, Store, Unit, Writer
from headrace.store.schema import metadata
from headrace.triggers.base import TriggerEvent


class Writing:
    """A writer, and what it answered."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.stored: list[Unit] = []
        self.refused: list[tuple[Unit, Exception]] = []
        self.available: list[bool] = []
        self.groups: list[GroupReport] = []
        self.writer = Writer(
            store,
            on_stored=self.stored.extend,
            on_refused=lambda unit, error: self.refused.append((unit, error)),
            on_available=self.available.append,
            on_group=self.groups.append,
            **options,
        )

    def submit(self, *units: Unit) -> None:
        for unit in units:
            self.writer.submit(unit)

    async def store(self, *units: Unit) -> None:
        """Submit them together, and wait for the answers."""
        self.submit(*units)
        await self.writer.flush()


@pytest.fixture
async def open_store(database_url: str) -> AsyncIterator[Callable[..., Awaitable[Store]]]:
    """Opens stores on the test's database; they are closed with the test."""
    stores: list[Store] = []

    async def open_(**options: Any) -> Store:
        store = await Store.open(database_url, **options)
        stores.append(store)
        return store

    yield open_
    for store in stores:
        await store.aclose()


@pytest.fixture
async def store(open_store: Callable[..., Awaitable[Store]]) -> Store:
    return await open_store()


@pytest.fixture
async def write_to() -> AsyncIterator[Callable[..., Writing]]:
    """Makes writers; they are closed with the test."""
    made: list[Writing] = []

    def make(store: Store, **options: Any) -> Writing:
        made.append(Writing(store, **options))
        return made[-1]

    yield make
    for writing in made:
        await writing.writer.aclose()


@pytest.fixture
async def writing(store: Store, write_to: Callable[..., Writing]) -> Writing:
    return write_to(store)


@pytest.fixture
def unit() -> Callable[..., Unit]:
    """Builds a unit of stream orders, with an event for each payload."""

    def build(message_id: str | None, *payloads: Any, trigger_id: str = "t", **fields: Any) -> Unit:
        events = [payload if isinstance(payload, TriggerEvent) else TriggerEvent(payload) for payload in payloads]
        return Unit(trigger_id, "orders", message_id, events, **fields)

    return build


@pytest.fixture
def pass_time() -> Callable[[Store, float], Awaitable[None]]:
    """Lets time pass in a store: everything in it becomes older by so many seconds."""

    async def pass_(store: Store, seconds: float) -> None:
        def job(connection: Connection) -> None:
            for table in metadata.sorted_tables:
                times = [column for column in table.columns if isinstance(column.type, Float) and column.name.endswith("_at")]
                if times:
                    connection.execute(update(table).values({column: column - seconds for column in times}))

        await store.database.write(job)

    return pass_


@pytest.fixture
def payloads() -> Callable[[Store], Awaitable[list[Any]]]:
    """All payloads of a store, in the order of its events."""

    async def read(store: Store) -> list[Any]:
        records: Iterable[Any] = await store.events.find(limit=100_000)
        return [record.event.payload for record in records][::-1]

    return read
