"""`headrace triggers`: what is registered, and what a user made of it. A running `serve` follows within a second."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.app.cli import console
from headrace.app.cli.common import AsJson, ConfigPath, load, with_store
from headrace.app.config import Config
from headrace.app.config.problems import nearest
from headrace.errors import HeadraceError
from headrace.store import Store, TriggerRecord, TriggerState

app = typer.Typer(no_args_is_help=True)

Names = Annotated[list[str], typer.Argument(metavar="TRIGGER...", help="Names of triggers.", show_default=False)]


@app.callback()
def triggers(context: typer.Context, config: ConfigPath) -> None:
    """List, pause, resume or remove triggers. A running `serve` follows within a second, and remembers over restarts.

    Example: headrace triggers headrace.yaml pause audit
    """
    context.obj = config


@app.command("list")
def list_triggers(context: typer.Context, as_json: AsJson = False) -> None:
    """List the triggers of the configuration and of the store.

    Example: headrace triggers headrace.yaml list
    """

    config = load(context.obj)
    records = {record.definition.trigger_id: record for record in with_store(config, lambda store: store.triggers.all())}
    rows = [_row(name, config, records.get(name)) for name in sorted(config.triggers.keys() | records.keys())]
    columns = ("name", "state", "stream", "class", "target", "reason")
    console.print_rows(columns, rows, as_json=as_json, empty="no triggers")


@app.command()
def pause(context: typer.Context, names: Names) -> None:
    """Pause triggers: they see no messages until they are resumed, and nothing waits for them.

    Example: headrace triggers headrace.yaml pause audit
    """
    _change(context, names, TriggerState.PAUSED)


@app.command()
def resume(context: typer.Context, names: Names) -> None:
    """Resume triggers that were paused, removed, or have failed.

    Example: headrace triggers headrace.yaml resume audit
    """
    _change(context, names, TriggerState.ACTIVE)


@app.command()
def remove(context: typer.Context, names: Names) -> None:
    """Remove triggers for good: they end what they watch, and are not started again although the configuration has them.

    Example: headrace triggers headrace.yaml remove audit
    """
    _change(context, names, TriggerState.REMOVED)


def _change(context: typer.Context, names: list[str], state: TriggerState) -> None:
    config = load(context.obj)

    async def changed(store: Store) -> None:
        known = [record.definition.trigger_id for record in await store.triggers.all()]
        for name in names:
            if name not in known:
                hint = "; `headrace serve` has not registered it yet" if name in config.triggers else nearest(name, known)
                raise HeadraceError(f"there is no trigger {name!r} in the store{hint}")
        for name in names:
            await store.triggers.set_state(name, state, "by hand")
            console.say(f"{name} is {state.value}")

    with_store(config, changed)


def _row(name: str, config: Config, record: TriggerRecord | None) -> dict[str, Any]:
    trigger = config.triggers.get(name)
    if record is not None:
        state, class_path, stream = record.state.value, record.definition.class_path, record.definition.stream
    else:
        assert trigger is not None
        found = trigger.trigger_class
        state, class_path, stream = (
            "new",
            "match" if found is None else f"{found.__module__}.{found.__qualname__}",
            trigger.stream,
        )
    return {
        "name": name,
        "state": state,
        "stream": stream,
        "class": class_path,
        "target": trigger.target if trigger else None,
        "reason": (record.reason if record else None) or ("" if trigger else "not in the configuration"),
        "changed": console.moment(record.updated_at) if record else None,
    }
