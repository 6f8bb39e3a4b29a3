"""Prints what is measured beside what is promised: `python -m benchmarks [--markdown] [PART ...]`, all parts by default."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import time

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.goals import Report

PARTS = ("engine", "memory", "latency", "store", "kafka")
COLUMNS = ("what", "at least", "stretch", "measured", "", "figures of this run")


def print_table(reports: list[Report]) -> None:
    table = Table(*COLUMNS, title="Headrace, goals beside measured")
    colours = {"NOT MET": "red", "met": "green", "stretch": "bold green"}
    for report in reports:
        for row in report.rows:
            *cells, verdict, detail = row.cells
            table.add_row(*map(escape, cells), f"[{colours[verdict]}]{verdict}[/]", escape(detail))
        table.add_section()
    Console(width=None if sys.stdout.isatty() else 180).print(table)


def print_markdown(reports: list[Report]) -> None:
    print("|", " | ".join(COLUMNS), "|")
    print("|" + "---|" * len(COLUMNS))
    for report in reports:
        for row in report.rows:
            print("|", " | ".join(row.cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Headrace beside its goals.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    reports = []
    for part in arguments.parts or PARTS:
        began = time.monotonic()
        print(f"{part} ...", end=" ", file=sys.stderr, flush=True)
        reports.append(importlib.import_module(f"benchmarks.{part}").report())
        print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    (print_markdown if arguments.markdown else print_table)(reports)
    for missing in (reason for report in reports for reason in report.missing):
        print(f"not measured: {missing}")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores, load {load}")


if __name__ == "__main__":
    main()
