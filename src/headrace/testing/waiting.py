"""Wait for a condition, as tests should, rather than for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

_INTERVAL = 0.01


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as the condition is true. Raises `TimeoutError` that names it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(_unmet(condition, seconds))
        time.sleep(_INTERVAL)


async def eventually(condition: Callable[[], object | Awaitable[object]], seconds: float = 20.0) -> None:
    """As `wait_until`, while the loop goes on; the condition may be a coroutine function."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return
        if loop.time() > deadline:
            raise TimeoutError(_unmet(condition, seconds))
        await asyncio.sleep(_INTERVAL)


def _unmet(condition: Callable[[], object], seconds: float) -> str:
    try:
        what = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        what = repr(condition)
    return f"not true within {seconds:.0f} s: {what}"
