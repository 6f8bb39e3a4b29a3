"""Helpers that must live as long as what they help: one that fails is named in the log and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds before a helper is started again."""


async def keep_running(name: str, work: Callable[[], Awaitable[None]], *, pause: float = PAUSE) -> None:
    """Run `work`, which is meant never to end, until it returns or this is cancelled; again whenever it raises."""
    while True:
        try:
            return await work()
        except Exception:
            log.critical("%s failed, which it never should; it is started again", name, exc_info=True)
        await asyncio.sleep(pause)


def whereabouts(error: BaseException) -> str:
    """An exception by its type and the line that raised it: its text is user code's, and may hold a payload."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    where = "" if traceback is None else f" at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
    return f"{type(error).__name__}{where}"
