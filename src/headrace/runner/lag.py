"""Notices code that blocks the event loop, and says whose it is and where it is stuck.

The loop notes the time twice a second; a thread of its own looks whether it still does. While the loop stands still only that
thread can tell what stands there: the task that is running and the innermost frame of the loop's thread. It looks several times:
a loop that is merely busy runs many tasks meanwhile, and none of them is to blame.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from headrace.runner.thread import call_threadsafe, whereabouts

log = logging.getLogger(__name__)

BLOCKED_AFTER: Final = 1.0
"""Seconds that the loop may stand still unnoticed."""


class LoopWatch:
    """Between `start` and `stop`. `name_of` tells which trigger a task belongs to; it is called from the watching thread.

    `on_blocked` is called on the loop, with that name (None where no one trigger is to blame) and the seconds it stood still, as
    soon as it moves again.
    """

    def __init__(
        self,
        name_of: Callable[[asyncio.Task[Any]], str | None],
        on_blocked: Callable[[str | None, float], None],
        *,
        blocked_after: float = BLOCKED_AFTER,
    ) -> None:
        self._name_of = name_of
        self._on_blocked = on_blocked
        self._blocked_after = blocked_after
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beat_at = time.monotonic()
        self._stopped = threading.Event()
        self._beating: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._watch, name="headrace-loop-watch", daemon=True)

    def start(self) -> None:
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._stopped.set()

    def _beat(self) -> None:
        self._beat_at = time.monotonic()
        self._beating = self._loop.call_later(self._blocked_after / 2, self._beat)

    def _watch(self) -> None:
        while not self._stopped.wait(self._blocked_after / 10):
            if time.monotonic() - self._beat_at > self._blocked_after * 0.75:
                self._look(self._beat_at)

    def _look(self, beat_at: float) -> None:
        """Look who runs while the loop does not beat, and say so when it is blocked and when it moves again."""
        seen: Counter[tuple[str | None, str]] = Counter()
        is_reported = False
        while self._beat_at == beat_at:
            if (found := self._culprit()) is not None:
                seen[found] += 1
            if not is_reported and time.monotonic() - beat_at > self._blocked_after:
                is_reported = True
                log.error(
                    "the event loop is blocked for more than %.1f s by %s, at %s; every trigger waits for it",
                    self._blocked_after,
                    _blame(seen)[1],
                    whereabouts(self._loop_thread),
                )
            if self._stopped.wait(self._blocked_after / 20):
                return
        if is_reported:
            name, culprit = _blame(seen)
            seconds = self._beat_at - beat_at
            log.warning("the event loop moves again, after %.1f s of %s", seconds, culprit)
            call_threadsafe(self._loop, self._on_blocked, name, seconds)

    def _culprit(self) -> tuple[str | None, str] | None:
        task = asyncio.current_task(self._loop)
        if task is None:
            return None
        name = self._name_of(task)
        return name, f"trigger {name}" if name is not None else task.get_name()


def _blame(seen: Counter[tuple[str | None, str]]) -> tuple[str | None, str]:
    """The task that was seen most of the times, with its trigger's name."""
    for found, times in seen.most_common(1):
        if times > seen.total() / 2:
            return found
    return None, "many tasks, none of them alone"
