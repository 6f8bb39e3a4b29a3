"""Commands that look without running anything: `check`, `connectors`, `schema`, and `db upgrade`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from headrace.app.cli import console
from headrace.app.cli.common import AsJson, ConfigPath, load
from headrace.app.config import load_config
from headrace.app.config.classes import find_connector
from headrace.app.config.schema import config_schema, option_rows
from headrace.connector import Connector, installed_connectors
from headrace.errors import ConfigError, HeadraceError
from headrace.store import Store

database = typer.Typer(no_args_is_help=True)


def check(config: ConfigPath, as_json: AsJson = False) -> None:
    """Check a configuration without connecting to anything: every mistake and warning at once.

    Example: headrace check headrace.yaml
    """
    try:
        loaded = load_config(config)
    except ConfigError as error:
        if not as_json:
            raise
        console.print_json({"ok": False, "problems": error.problems, "warnings": []})
        raise typer.Exit(1) from None
    streams = {name: stream.connector_name for name, stream in loaded.streams.items()}
    triggers = {name: trigger.stream for name, trigger in loaded.triggers.items()}
    if as_json:
        found = {"ok": True, "problems": [], "warnings": loaded.warnings, "streams": streams, "triggers": triggers}
        console.print_json(found)
        return
    for warning in loaded.warnings:
        console.say(f"warning: {warning}")
    console.say(f"{config} is right: {len(streams)} streams, {len(triggers)} triggers")


def connectors(
    name: Annotated[str | None, typer.Argument(help="Show the options of this connector.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """List the installed connectors, or the options of one.

    Example: headrace connectors kafka
    """
    if name is not None:
        try:
            rows = option_rows(find_connector(name).Config)
        except ValueError as error:
            raise HeadraceError(str(error)) from error
        console.print_rows(("key", "type", "default", "meaning"), rows, as_json=as_json, empty="it takes no options")
        return
    usable = _usable_connectors()
    listed: list[dict[str, Any]] = []
    for known, distribution in installed_connectors().items():
        capabilities = usable[known].capabilities if known in usable else None
        listed.append(
            {
                "name": known,
                "distribution": distribution,
                "ordered": capabilities and capabilities.ordered,
                "replayable": capabilities and capabilities.replayable,
                "lease_seconds": capabilities and capabilities.lease_seconds,
                "parallel_advances": capabilities and capabilities.parallel_advances,
            }
        )
    columns = ("name", "distribution", "ordered", "replayable", "lease_seconds", "parallel_advances")
    console.print_rows(columns, listed, as_json=as_json, empty="no connectors are installed: pip install headrace-local")


def schema() -> None:
    """Print the configuration's JSON schema, with those of the installed connectors.

    Example: headrace schema > headrace.schema.json
    """
    console.print_json(config_schema(_usable_connectors()))


def _usable_connectors() -> dict[str, Connector]:
    """The installed connectors, without those that cannot be imported: each of these is a warning."""
    usable = {}
    for name in installed_connectors():
        try:
            usable[name] = find_connector(name)
        except ValueError as error:
            console.say(f"warning: {error}")
    return usable


@database.callback()
def db(context: typer.Context, config: ConfigPath) -> None:
    """Look after the store's database.

    Example: headrace db headrace.yaml upgrade
    """
    context.obj = config


@database.command()
def upgrade(context: typer.Context) -> None:
    """Bring the store's database to this version, or create it. `serve` does the same as it starts.

    Example: headrace db headrace.yaml upgrade
    """
    config = load(context.obj)

    async def upgraded() -> str:
        store = await Store.open(config.store.url, secret_keys=[key.get_secret_value() for key in config.store.secret_keys])
        try:
            return store.url
        finally:
            await store.aclose()

    console.say(f"{asyncio.run(upgraded())} is of this version")
