"""An event loop in a thread of its own, called from another loop.

Cancellation crosses: a caller that is cancelled cancels what it called, and waits a moment for it to end. The thread is a
daemon: code that never comes back cannot keep the process alive, and is named where it hangs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any, Final, TypeVar

T = TypeVar("T")

CANCEL_GRACE: Final = 1.0
"""Seconds that a cancelled caller waits for what it called to end."""

log = logging.getLogger(__name__)


class Post:
    """Calls into a loop from other threads, in order: one wake of the loop for all that are posted before it looks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def put(self, function: Callable[..., object], *args: Any) -> None:
        """Have it called on the loop. Does nothing once the loop is closed: nobody is left to be told."""
        self._calls.append((function, args))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:
                if not self._loop.is_closed():
                    raise

    def _take(self) -> None:
        self._is_woken = False  # first: what is posted from here on wakes again, or is taken below
        while self._calls:
            function, args = self._calls.popleft()
            self._loop.call_soon(function, *args)


class LoopThread:
    """Runs from its construction until `stop`. Every method but `call` may be used from any thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        self._post = Post(self.loop)
        self._answers: Post | None = None
        self._asked_to_stop = asyncio.Event()
        self._ended: ThreadFuture[None] = ThreadFuture()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._until_stopped())
        finally:
            self._ended.set_result(None)

    async def _until_stopped(self) -> None:
        await self._asked_to_stop.wait()

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Have it called there, after what was asked for before. Does nothing once the loop is closed."""
        self._post.put(function, *args)

    def run_blocking(self, function: Callable[[], T], timeout: float) -> T:
        """Run a synchronous function there and block until it returned. Raises what it raises, `TimeoutError` after `timeout`."""
        done: ThreadFuture[T] = ThreadFuture()

        def run() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self.call_soon(run)
        return done.result(timeout)

    async def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()` there, in a task of its own. Raises what it raises. Always called from the same loop.

        When the caller is cancelled, that task is cancelled and waited for up to `CANCEL_GRACE` seconds.
        """
        if self._ended.done():
            raise RuntimeError(f"{self.name} has ended")
        caller = asyncio.get_running_loop()
        answers = self._answers = self._answers or Post(caller)
        outcome: asyncio.Future[T] = caller.create_future()
        ended: asyncio.Future[None] = caller.create_future()
        running: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self.loop.create_task(contained(function), name=self.name)
            running.append(task)
            task.add_done_callback(lambda task: answers.put(settle, task))

        def settle(task: asyncio.Task[T]) -> None:
            error = None if task.cancelled() else task.exception()
            ended.set_result(None)
            if outcome.done():  # its caller was cancelled meanwhile
                return
            if error is not None:
                outcome.set_exception(error)
            elif task.cancelled():
                outcome.set_exception(RuntimeError(f"a call into {self.name} was cancelled there"))
            else:
                outcome.set_result(task.result())

        self._post.put(start)
        try:
            return await outcome
        except asyncio.CancelledError:
            self._post.put(lambda: [task.cancel() for task in running])
            await asyncio.wait((ended,), timeout=CANCEL_GRACE)
            raise

    def request_stop(self) -> None:
        """Have its tasks cancelled and the thread end, without waiting for it."""
        self.call_soon(self._asked_to_stop.set)

    async def stop(self, timeout: float) -> bool:
        """Cancel its tasks and wait for the thread to end. False: it hangs, and is left behind."""
        self.request_stop()
        ended = asyncio.wrap_future(self._ended)
        await asyncio.wait((ended,), timeout=timeout)
        return ended.done()

    def whereabouts(self) -> str:
        """Where its code is now: file, line and function."""
        return whereabouts(self._thread.ident)


def whereabouts(thread_id: int | None) -> str:
    """Where the code of a thread is now: file, line and function of its innermost frame."""
    frame = sys._current_frames().get(thread_id) if thread_id is not None else None
    if frame is None:
        return "nowhere: its thread has ended"
    last = traceback.extract_stack(frame, limit=None)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


async def contained(function: Callable[[], Awaitable[T]]) -> T:
    """Await foreign code that must not end the process: in a task, `sys.exit` would end the loop itself."""
    try:
        return await function()
    except SystemExit as error:
        raise RuntimeError(f"user code asked the process to exit: SystemExit({error.code!r})") from error


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """`loop.call_soon_threadsafe`, for a loop that may have been closed meanwhile: then nobody is left to be told."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
