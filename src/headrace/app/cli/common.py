"""What several commands need: their common arguments, and the store of a configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from headrace.app.cli import console
from headrace.app.config import Config, load_config
from headrace.errors import StoreUnavailable
from headrace.store import Store

T = TypeVar("T")

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration file.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def load(path: Path) -> Config:
    """Load the configuration and say its warnings. Raises `ConfigError`."""
    config = load_config(path)
    for warning in config.warnings:
        console.say(f"warning: {warning}")
    return config


def sqlite_file(url: str) -> Path | None:
    """The database file of an SQLite URL; None for a database in memory or on a server."""
    name = url.partition("?")[0].removeprefix("sqlite:///")
    return None if name in (url, "", ":memory:") else Path(name)


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[Store]:
    """The store that `serve` uses, beside it. A SQLite file that is not there is an error, rather than an empty store."""
    file = sqlite_file(config.store.url)
    if file is not None and not file.exists():
        raise StoreUnavailable(
            f"there is no store at {file.absolute()} yet: start `headrace serve` first, or run this where it was started"
        )
    store = await Store.open(config.store.url, secret_keys=[key.get_secret_value() for key in config.store.secret_keys])
    try:
        yield store
    finally:
        await store.aclose()


def with_store(config: Config, act: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, act on it, and close it."""

    async def opened() -> T:
        async with open_store(config) as store:
            return await act(store)

    return asyncio.run(opened())
