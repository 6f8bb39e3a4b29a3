"""`headrace demo`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from headrace.app.demo.run import DemoSettings, Progress, run_demo


def demo(
    events: Annotated[int, typer.Option(min=100, help="Orders to publish.")] = 20_000,
    rate: Annotated[int, typer.Option(min=10, help="Orders published a second.")] = 500,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Use this Kafka instead of the embedded broker.", show_default=False)
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the folder with the configuration, the store and the log.")] = False,
) -> None:
    """Show the main job: orders to a broker, three triggers on one stream, a webhook; killed half-way, and counted.

    Everything runs in real processes and in a folder of its own. Exits with 0 if no event was lost or doubled.

    Example: headrace demo --kafka localhost:9092 --events 50000
    """
    console = Console(highlight=False)
    settings = DemoSettings(events=events, rate=rate, kafka=kafka, keep=keep)
    with _progress(console) as progress:
        report = asyncio.run(run_demo(settings, progress))
    console.print(report.table())
    if not report.is_good:
        raise typer.Exit(1)


@contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    """Bars where somebody watches; a line at each tenth where the output goes to a file."""
    if not sys.stdout.isatty():
        yield _Lines(console)
        return
    columns = (TextColumn("{task.description:>10}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=console) as bars:
        yield _Bars(bars)


class _Bars:
    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._ids: dict[str, TaskID] = {}

    def expect(self, name: str, total: int) -> None:
        if name not in self._ids:
            self._ids[name] = self._bars.add_task(name, total=total)
        self._bars.update(self._ids[name], total=total)

    def reach(self, name: str, count: int) -> None:
        if name in self._ids:
            self._bars.update(self._ids[name], completed=count)

    def say(self, text: str) -> None:
        self._bars.console.print(text)


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._totals: dict[str, int] = {}
        self._tenths: dict[str, int] = {}

    def expect(self, name: str, total: int) -> None:
        self._totals[name] = total

    def reach(self, name: str, count: int) -> None:
        tenths = 10 * count // max(self._totals.get(name, 0), 1)
        if tenths > self._tenths.get(name, 0) and name == "published":
            self._tenths[name] = tenths
            self._console.print(f"{name} {count:,}")

    def say(self, text: str) -> None:
        self._console.print(text)
