"""The interpreters that the drivers run in: ours, and that of Airflow's own environment, which `make bench` prepares."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
AIRFLOW = HERE.parent / ".cache" / "airflow" / "bin" / "python"

Job = Mapping[str, Any]


class World:
    """A driver process that answers one job after the other. A context manager: leaving it ends the process."""

    def __init__(self, name: str, script: str = "driver.py", *arguments: str) -> None:
        python = str(AIRFLOW) if name == "airflow" else sys.executable
        self._home = tempfile.TemporaryDirectory(prefix="headrace-bench-")
        self._log = Path(self._home.name) / "log"
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": self._home.name, "AIRFLOW_HOME": self._home.name}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(HERE / script), name, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def run(self, job: Job) -> Any:
        """Do a job; returns what the driver answers. Raises `RuntimeError` with the end of its log if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the driver failed on {job}:\n{self._log.read_text(errors='replace')[-4000:]}")
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends when there are no more jobs
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._home.cleanup()


class Worlds:
    """Both worlds at once. Airflow's is left out, with the reason, where its environment is missing."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self.headrace = self._stack.enter_context(World("headrace"))
        self.airflow = self._stack.enter_context(World("airflow")) if AIRFLOW.exists() else None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def interleaved(rounds: int, jobs: Sequence[tuple[World, Job]]) -> list[list[float]]:
    """Run the jobs in turn, so that all meet the same machine; returns the CPU nanoseconds an event of each, a list of rounds."""
    for world, job in jobs:
        world.run({**job, "events": max(1, job["events"] // 4)})  # warm
    taken: list[list[float]] = [[] for _ in jobs]
    for _ in range(rounds):
        for figures, (world, job) in zip(taken, jobs, strict=True):
            figures.append(world.run(job) / job["events"] * 1e9)
    return taken


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


median = statistics.median
