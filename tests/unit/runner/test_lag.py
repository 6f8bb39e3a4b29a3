"""A blocked loop is noticed while it is blocked, and named."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from headrace.runner.lag import LoopWatch


def trigger_of(task: asyncio.Task[Any]) -> str | None:
    return task.get_name() if task.get_name() != "main" else None


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # another thread's doing
            await asyncio.sleep(0.01)


async def test_k20_code_that_blocks_the_loop_is_noticed_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """K20: whose task it is, where its code is stuck, and for how long, once for each time."""
    blocked: list[tuple[str | None, float]] = []
    watch = LoopWatch(trigger_of, lambda name, seconds: blocked.append((name, seconds)), blocked_after=0.1)
    watch.start()

    async def burns() -> None:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            sum(range(100))

    with caplog.at_level(logging.WARNING):
        await asyncio.get_running_loop().create_task(burns(), name="eu-orders")
        await wait_for(lambda: blocked)
    watch.stop()
    ((name, seconds),) = blocked
    assert name == "eu-orders"
    assert 0.4 < seconds < 5
    assert "by trigger eu-orders, at " in caplog.text
    assert "in burns" in caplog.text


async def test_a_loop_that_moves_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Waiting is not blocking: nothing is reported of a loop that turns."""
    blocked: list[Any] = []
    watch = LoopWatch(trigger_of, lambda *found: blocked.append(found), blocked_after=2.0)
    watch.start()
    await asyncio.sleep(0.3)
    watch.stop()
    assert blocked == []


async def test_a_task_that_is_no_triggers_is_named_by_its_own_name(caplog: pytest.LogCaptureFixture) -> None:
    """Not every blockage is a trigger's: the count then names none, the log names the task."""
    blocked: list[tuple[str | None, float]] = []
    watch = LoopWatch(lambda task: None, lambda name, seconds: blocked.append((name, seconds)), blocked_after=0.1)
    watch.start()

    async def burns() -> None:
        time.sleep(0.5)  # noqa: ASYNC251  # what is looked for

    with caplog.at_level(logging.WARNING):
        await asyncio.get_running_loop().create_task(burns(), name="housekeeping")
        await wait_for(lambda: blocked)
    watch.stop()
    assert blocked[0][0] is None
    assert "by housekeeping, at " in caplog.text


async def test_a_busy_loop_blames_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Many tasks that each take a little keep the loop from turning too, and none of them is to blame."""
    blocked: list[tuple[str | None, float]] = []
    watch = LoopWatch(trigger_of, lambda name, seconds: blocked.append((name, seconds)), blocked_after=0.2)
    watch.start()

    async def brief() -> None:
        until = time.monotonic() + 0.03
        while time.monotonic() < until:
            sum(range(100))

    with caplog.at_level(logging.WARNING):
        await asyncio.gather(*(asyncio.get_running_loop().create_task(brief(), name=f"trigger {n}") for n in range(30)))
        await wait_for(lambda: blocked)
    watch.stop()
    assert blocked[0][0] is None
    assert "many tasks, none of them alone" in caplog.text
