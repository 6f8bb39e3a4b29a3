"""Wait for a condition, as tests should, rather than for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


def _pause(waited: float) -> float:
    """Seconds until the next look: a tenth of what was waited, so that a long wait costs no processor and little time."""
    return min(max(waited / 10, 0.005), 0.25)


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as the condition is true. Raises `TimeoutError` that names it."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        if waited > seconds:
            raise TimeoutError(_unmet(condition, seconds))
        time.sleep(_pause(waited))


async def eventually(condition: Callable[[], object | Awaitable[object]], seconds: float = 20.0) -> None:
    """As `wait_until`, while the loop goes on; the condition may be a coroutine function."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while True:
        held = condition()
        if inspect.isawaitable(held):
            held = await held
        if held:
            return
        waited = loop.time() - started
        if waited > seconds:
            raise TimeoutError(_unmet(condition, seconds))
        await asyncio.sleep(_pause(waited))


def _unmet(condition: Callable[[], object], seconds: float) -> str:
    try:
        what = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        what = repr(condition)
    return f"not true within {seconds:.0f} s: {what}"
