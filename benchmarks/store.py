"""Group commits against single rows, on SQLite (WAL, synchronous=FULL) and PostgreSQL.

Rounds of single units and of groups alternate, all through the writer, so that both meet the same machine; the figures are
medians over the rounds. Run it with `python -m benchmarks.store`.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.goals import Goal, Report
from headrace.store import Store, Unit, Writer
from headrace.testing.brokers import BrokerUnavailable, PostgreSQL, launch
from headrace.triggers.base import TriggerEvent

SIZES = (1, 100, 1000)
PAYLOAD = {"order": 4711, "region": "eu", "amount": 99.5, "lines": [{"sku": f"sku-{n}", "quantity": n} for n in range(12)]}
GOALS = {"sqlite": (25, 35), "postgresql": (10, 15)}
"""A group of 100 against single rows: at least, stretch."""
TITLES = {"sqlite": "SQLite FULL", "postgresql": "PostgreSQL"}


@dataclass(frozen=True)
class Measured:
    """Units a second, by group size."""

    database: str
    rates: dict[int, float]

    @property
    def ratio(self) -> float:
        """A group of 100 against single rows."""
        return self.rates[100] / self.rates[1]


async def measure(database: str, url: str, *, seconds: float) -> Measured:
    """Store units for so many seconds, in groups of each size in turn."""
    store = await Store.open(url)
    writer = Writer(store, on_stored=lambda units: None, on_refused=lambda unit, error: None)
    numbers = itertools.count()

    async def group(size: int) -> float:
        """Seconds for one group."""
        units = [
            Unit("bench", "orders", f"orders/0/{next(numbers)}/1700000000.5", [TriggerEvent(PAYLOAD)], lane="orders/0")
            for _ in range(size)
        ]
        began = time.perf_counter()
        for unit in units:
            writer.submit(unit)
        await writer.flush()
        return time.perf_counter() - began

    times: dict[int, list[float]] = {size: [] for size in SIZES}
    await group(100)  # connections, statements, the first pages
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or not times[SIZES[-1]]:
        for size, repeat in zip(SIZES, (20, 5, 1), strict=True):
            times[size].extend([await group(size) for _ in range(repeat)])
    await writer.aclose()
    await store.aclose()
    return Measured(database, {size: size / statistics.median(taken) for size, taken in times.items()})


@contextmanager
def databases() -> Iterator[list[tuple[str, str]]]:
    """Both databases, empty; SQLite alone where there is no PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        urls = [("sqlite", f"sqlite:///{Path(folder) / 'headrace.db'}")]
        try:
            server = launch("postgresql")
        except BrokerUnavailable as error:
            print(f"no PostgreSQL: {error}", file=sys.stderr)
            yield urls
            return
        assert isinstance(server, PostgreSQL)
        with server:
            yield [*urls, ("postgresql", server.create_database())]


def run(seconds: float = 8.0) -> list[Measured]:
    """Measure both."""
    with databases() as urls:
        return [asyncio.run(measure(database, url, seconds=seconds)) for database, url in urls]


def report() -> Report:
    """The ratios beside their goals."""
    found = Report("store")
    for measured in run():
        least, stretch = GOALS[measured.database]
        goal = Goal(f"group commit of 100 against single rows, {TITLES[measured.database]}", least, stretch)
        detail = ", ".join(f"{rate:,.0f}" for rate in measured.rates.values())
        found.add(goal, measured.ratio, f"{detail} units/s in groups of {', '.join(map(str, SIZES))}")
    if len(found.rows) < len(GOALS):
        found.missing.append("PostgreSQL's group commits: there is no PostgreSQL")
    return found


def main() -> None:
    table = Table("database", *(f"groups of {size}, units/s" for size in SIZES), "100 against 1", "at least", "stretch")
    for measured in run():
        least, stretch = GOALS[measured.database]
        rates = [f"{rate:,.0f}" for rate in measured.rates.values()]
        table.add_row(measured.database, *rates, f"{measured.ratio:.1f}x", f"{least}x", f"{stretch}x")
    Console().print(table)


if __name__ == "__main__":
    main()
