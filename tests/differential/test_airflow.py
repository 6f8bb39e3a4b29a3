"""The same histories on Airflow 3.3.2's manager and on ours: equal, except where Airflow loses messages.

Airflow runs in an environment of its own (`make test` prepares it). A random history that differs is printed whole. The cases
in which ours must differ are listed below, each with what Airflow does and what the rule asks for.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import virtual_time

TOP = Path(__file__).parents[2]
AIRFLOW = TOP / ".cache" / "airflow" / "bin" / "python"
DRIVER = Path(__file__).with_name("driver.py")
HISTORIES = 300


def play(world: str, histories: list[dict[str, Any]], tmp_path: Path) -> list[dict[str, Any]]:
    """Run the histories in one world."""
    done = subprocess.run(
        [str(AIRFLOW) if world == "airflow" else sys.executable, str(DRIVER), world, virtual_time.__file__],
        input=json.dumps(histories),
        capture_output=True,
        text=True,
        timeout=300,
        env={"AIRFLOW_HOME": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(done.stdout.rpartition("\nRESULTS ")[2])
    return results


@pytest.fixture(autouse=True)
def airflow_is_there() -> None:
    if not AIRFLOW.exists():
        pytest.fail(f"{AIRFLOW} is missing: `make test` prepares Airflow's own environment")


def history(seed: int) -> dict[str, Any]:
    """Random steps of a few subscribers on a few lanes, ended by letting every subscriber catch up."""
    rng = random.Random(seed)
    names = "abcd"[: rng.randint(1, 4)]
    lanes = ["x", "y", "z"][: rng.randint(1, 3)]
    steps: list[dict[str, Any]] = [{"do": "subscribe", "name": name} for name in names if rng.random() < 0.8]
    kinds = ["feed"] * 6 + ["pull"] * 8 + ["derive"] * 2 + ["confirm"] * 2 + ["reject", "leave", "subscribe"]
    events = 0
    for _ in range(rng.randint(10, 80)):
        kind = rng.choice(kinds)
        step: dict[str, Any] = {"do": kind}
        if kind == "feed":
            step["payload"] = {"event": events, "lane": rng.choice(lanes)}
            events += 1
        else:
            step |= {"name": rng.choice(names), "which": rng.randint(0, 9)}
        steps.append(step)
    if rng.random() < 0.3:
        steps.append({"do": "feed", "payload": rng.choice(["raise", "return"])})
    steps += [{"do": "finish", "name": name} for name in names]
    queue = rng.choice([1000, 1000, 3])
    return {"settings": {"max_subscriber_queue": queue, "ack_timeout": 1000}, "steps": steps}


@pytest.mark.timeout(240)
def test_random_histories_are_equal(tmp_path: Path) -> None:
    """Who saw what, each `advance` call's events in order with their outcomes, errors, and the source's one close."""
    histories = [history(seed) for seed in range(HISTORIES)]
    theirs, ours = play("airflow", histories, tmp_path), play("headrace", histories, tmp_path)
    told = 0
    for seed, (airflow, headrace) in enumerate(zip(theirs, ours, strict=True)):
        told += sum(map(len, headrace["calls"]))
        for mine, other in zip(headrace["subscribers"], airflow["subscribers"], strict=True):
            if mine[2] == "SubscriberOverflow" and other[2] is not None:
                mine[2] = other[2]  # when the stream ends too, Airflow shows the later error, ours the subscriber's own
        if by_lane(airflow) != by_lane(headrace):
            pytest.fail(
                f"seed {seed}\n{json.dumps(histories[seed])}\nairflow:  {by_lane(airflow)}\nheadrace: {by_lane(headrace)}"
            )
    assert told > 2 * HISTORIES, "the histories settle too little to prove anything"


def by_lane(result: dict[str, Any]) -> dict[str, Any]:
    """What must be equal: calls are cut as each pump likes, so only the order within a lane counts."""
    lanes: dict[str, list[Any]] = {}
    for call in result["calls"]:
        assert len({item[1] for item in call}) == 1
        lanes.setdefault(call[0][1], []).extend(call)
    return {"lanes": lanes, "subscribers": result["subscribers"], "closed": result["closed"]}


def steps(*texts: str) -> list[dict[str, Any]]:
    """`"a pull"`, `"feed 1"`, `"sleep 5"` as steps."""

    def one(text: str) -> dict[str, Any]:
        first, second = text.split()
        if first == "feed":
            return {"do": "feed", "payload": {"event": int(second), "lane": "x"}}
        if first == "sleep":
            return {"do": "sleep", "seconds": float(second)}
        return {"do": second, "name": first, "which": 0}

    return [one(text) for text in texts]


DIFFERENCES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[list[int]], list[list[int]]]] = {
    "a filter that raised with an event in hand: Airflow commits the event, R9 fails it": (
        steps("a subscribe", "b subscribe", "feed 1", "a pull", "b pull", "a crash", "b pull"),
        {},
        [[1, 2, 0, 0]],
        [[1, 1, 1, 0]],
    ),
    "an event that waits in a queue: Airflow's clock runs from the broadcast and fails who works, R9's from the pull": (
        steps(
            "a subscribe", "feed 1", "feed 2", "feed 3", "a pull", "sleep 6", "a pull", "sleep 6", "a pull", "sleep 6", "a pull"
        ),
        {"ack_timeout": 10},
        [[1, 1, 0, 0], [2, 0, 1, 0], [3, 0, 1, 0]],
        [[1, 1, 0, 0], [2, 1, 0, 0], [3, 1, 0, 0]],
    ),
    "a store that refuses: Airflow cannot be told and the event waits for its timeout, R10 fails it at once": (
        steps("a subscribe", "feed 1", "a pull", "a derive", "a refuse", "a pull"),
        {},
        [],
        [[1, 0, 1, 0]],
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_listed_differences(name: str, tmp_path: Path) -> None:
    """Where Airflow loses or wastes an event, it does, and ours does not."""
    script, settings, theirs, ours = DIFFERENCES[name]
    case = [{"settings": settings, "steps": script}]
    assert list(outcomes(play("airflow", case, tmp_path)[0])) == theirs
    assert list(outcomes(play("headrace", case, tmp_path)[0])) == ours


def outcomes(result: dict[str, Any]) -> Iterator[list[int]]:
    for call in result["calls"]:
        for event, _, acked, failed, rejected, _ in call:
            yield [event, acked, failed, rejected]
