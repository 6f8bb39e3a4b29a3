"""The command line. Exit codes: 0 done, 1 failed, 2 wrong use. Expected errors are a line each, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from headrace.app.cli import console, events, inspection, triggers
from headrace.app.cli.demo import demo
from headrace.app.cli.publish import publish
from headrace.app.cli.serve import serve
from headrace.errors import ConfigError, HeadraceError

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Headrace brings broker streams to triggers, stored first, then acknowledged.

    Example: headrace demo
    """


app.command()(serve)
app.command()(inspection.check)
app.command()(demo)
app.command()(publish)
app.add_typer(triggers.app, name="triggers")
app.add_typer(events.app, name="events")
app.command()(inspection.connectors)
app.add_typer(inspection.database, name="db")
app.command()(inspection.schema)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command that the arguments name (default: the process's), and exit."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)  # so that `class: mypackage.triggers:Mine` finds what lies beside the configuration
    try:
        app(args=None if arguments is None else list(arguments), prog_name="headrace")
    except ConfigError as error:
        console.fail(error.problems)
    except HeadraceError as error:
        console.fail([str(error)])
    sys.exit(1)
