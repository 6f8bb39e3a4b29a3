"""How commands talk: tables or JSON on standard output, everything else on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def say(text: str) -> None:
    """A line for the person, on standard error: what goes through a pipe stays clean."""
    errors.print(text)


def fail(problems: Iterable[str]) -> None:
    """Say why the command failed: a line for each problem."""
    for problem in problems:
        errors.print(f"error: {problem}", style="red")


def print_json(value: Any) -> None:
    """Write JSON, indented, to standard output."""
    sys.stdout.buffer.write(orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def print_rows(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Print rows as a table of the given columns, or all they have as JSON. `empty` is what an empty table says."""
    if as_json:
        print_json(list(rows))
    elif not rows:
        say(empty)
    else:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in columns:
            table.add_column(column.replace("_", " "), overflow="fold")
        for row in rows:
            table.add_row(*(_cell(row[column]) for column in columns))
        _output().print(table)


def print_fields(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one thing: a line for each of its fields, or JSON."""
    if as_json:
        print_json(fields)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name.replace("_", " "), _cell(value))
    _output().print(table)


def moment(seconds: float | None) -> str | None:
    """Epoch seconds as local time, to the second."""
    return None if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _output() -> Console:
    """As wide as the terminal; in a pipe as wide as the lines are, so that each row stays one line."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 10_000)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list, tuple)):
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    return str(value)
