"""An asyncio loop whose clock is a number: hours of timeouts and backoffs pass in milliseconds, the same way each time.

While callbacks are ready the loop runs them and its clock stands still. When none is, the clock jumps to the next timer.
When there is no timer either, no event can ever happen: the loop raises `Deadlock`, which says what every task waits for,
where an ordinary loop would hang.

Code under test reads the time from `loop.time()` (as `asyncio.sleep` and `asyncio.timeout` do); `time.monotonic()` goes on in
real time. Threads belong to real time too: while a function runs in an executor (`asyncio.to_thread`), or inside `held()`, the
clock waits for it. Use `run_virtual` in plain code and `in_virtual_time` on async tests; fixtures they need are synchronous.
"""

from __future__ import annotations

import asyncio
import functools
import math
import selectors
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

__all__ = ["Deadlock", "VirtualTimeLoop", "in_virtual_time", "run_virtual"]

P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """Nothing can happen any more, or nothing but timers that lead nowhere. The message lists the tasks and where they wait."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, which starts at 0 seconds.

    `limit`: virtual seconds after which `Deadlock` is raised, which catches a main task that waits for ever beside a timer that
    repeats. `patience`: real seconds to wait for another thread or a socket before `Deadlock` is raised.
    """

    def __init__(self, *, limit: float = 3600.0, patience: float = 10.0) -> None:
        self._now = 0.0
        self._limit = limit
        self._deadline = limit
        self._patience = patience
        self._holds = 0
        super().__init__(_JumpingSelector(self._select_timeout))

    def time(self) -> float:
        return self._now

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the clock still and wait in real time: something outside the loop (a thread, a socket) is at work."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._holds += 1
        future.add_done_callback(self._release)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        with self.held():  # `timeout` is in real seconds and would pass in no time here
            await super().shutdown_default_executor()

    def _release(self, _future: asyncio.Future[Any]) -> None:
        self._holds -= 1

    def _select_timeout(self, timeout: float | None, others: bool) -> Iterator[float]:
        """Yield how long to look for I/O in real seconds, until some is found; then move the clock, or raise.

        `timeout` is what asyncio would wait: 0 when callbacks are ready, None when there is no timer. `others`: whether
        sockets are registered.
        """
        yield 0  # what a thread or socket has brought already comes before any jump
        if timeout == 0:
            return
        if self._holds:
            yield self._patience
            raise Deadlock(f"waited {self._patience:g} real seconds for another thread or held(){self._waiting()}")
        if timeout is None:
            if others or threading.active_count() > 1:
                yield self._patience
            raise Deadlock(f"no callback is ready and no timer is set at {self._now:g} s{self._waiting()}")
        # Exactly the timer's moment: one bit less, and code that compares it with its deadline sets the timer again, for ever.
        self._now = self._scheduled[0]._when  # type: ignore[attr-defined]  # asyncio's heap; the head is never a cancelled one
        # A timer runs when it is due within the resolution; 1e-9 s vanishes beside a clock of months.
        self._clock_resolution = max(1e-9, math.ulp(self._now))
        if self._now > self._deadline:
            self._deadline = self._now + self._limit  # clean-up gets as much again
            raise Deadlock(f"still not finished after {self._limit:g} virtual seconds (the loop's limit){self._waiting()}")

    def _waiting(self) -> str:
        lines = sorted(f"\n  {task.get_name()}: {_innermost(task)}" for task in asyncio.all_tasks(self))
        return f"; {len(lines)} tasks wait:" + "".join(lines)


class _JumpingSelector(selectors.DefaultSelector):
    """Asks its loop how long to wait, instead of waiting as long as it is told."""

    def __init__(self, waits: Callable[[float | None, bool], Iterator[float]]) -> None:
        super().__init__()
        self._waits = waits

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        others = len(self.get_map()) > 1  # the first is the loop's own, for call_soon_threadsafe
        for seconds in self._waits(timeout, others):
            found: list[tuple[selectors.SelectorKey, int]] = super().select(seconds)
            if found:
                return found
        return []


def _innermost(task: asyncio.Task[Any]) -> str:
    """Where a task waits, as `function (file:line)`: the innermost coroutine or generator of its own."""
    awaitable: Any = task.get_coro()
    place = repr(awaitable)
    while awaitable is not None:
        frame = (
            getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None) or getattr(awaitable, "gi_frame", None)
        )
        if frame is not None:
            code = frame.f_code
            place = f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
        awaitable = (
            getattr(awaitable, "cr_await", None)
            or getattr(awaitable, "ag_await", None)
            or getattr(awaitable, "gi_yieldfrom", None)
        )
    return place


def run_virtual(main: Coroutine[Any, Any, T], *, limit: float = 3600.0, patience: float = 10.0, debug: bool | None = None) -> T:
    """Run a coroutine to its end in a new `VirtualTimeLoop`, as `asyncio.run` does, and return its result.

    Tasks left over are cancelled and awaited. Raises `Deadlock` instead of hanging.
    """
    with asyncio.Runner(debug=debug, loop_factory=lambda: VirtualTimeLoop(limit=limit, patience=patience)) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Make an async test an ordinary one that runs in virtual time. Fixtures, parameters and Hypothesis' `@given` still work."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        async def main() -> T:
            return await test(*args, **kwargs)

        return run_virtual(main())

    return run
