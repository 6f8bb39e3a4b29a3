"""The `callable` target: calls a Python function with each event.

An `async def` function is awaited on the dispatcher's loop; any other runs in a thread of its own, up to `max_concurrency` at
once. What it returns is not looked at. It is called with the `StoredEvent`: `identity`, `trigger_id`, `stream`, `message_id`,
`payload`, … An exception means "again later", `TargetRejected` "never", `TargetError(…, retry_after=seconds)` "after that".
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, field_validator

from headrace.dispatch.targets.base import PositiveSeconds, Target, TargetConfig
from headrace.errors import ConfigError, TargetError
from headrace.store import StoredEvent


class CallableConfig(TargetConfig):
    """Call a Python function with each event."""

    function: str
    """`package.module:function` (or `package.module.function`)."""
    max_concurrency: int = Field(default=8, ge=1)
    """Calls that run at once, in each replica; for a function that is not `async`, also its threads."""
    timeout: PositiveSeconds = 20.0
    """How long one call may take. A thread cannot be stopped: past its time the event is tried again later, and the call may
    still end."""

    @field_validator("function")
    @classmethod
    def _path(cls, path: str) -> str:
        module, attribute = _split(path)
        if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
            raise ValueError(f"{path!r} is not of the form package.module:function")
        return path


class CallableTarget(Target):
    """Imports its function when it is built. Raises `ConfigError` where that fails."""

    kind: ClassVar[str] = "callable"

    def __init__(self, config: CallableConfig) -> None:
        super().__init__(config)
        self._path = config.function
        self._function = import_function(config.function)
        self._is_async = inspect.iscoroutinefunction(self._function)
        self._threads = 0  # those past their timeout too: they are as busy as the others

    async def deliver(self, event: StoredEvent) -> None:
        try:
            call = partial(self._function, event)
            result = call() if self._is_async else await self._in_thread(call)
            if inspect.isawaitable(result):  # a plain function may return a coroutine too
                await result
        except (SystemExit, GeneratorExit) as error:  # would end the process, or this task without a word
            raise TargetError(f"{self._path} raised {type(error).__name__}") from error

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Run the call in a daemon thread: one that hangs must not keep the process from ending, as an executor's would."""
        if self._threads >= self.config.max_concurrency:
            raise TargetError(f"{self._threads} calls of {self._path} are still running past their timeout")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def finish(result: Any, error: BaseException | None) -> None:
            self._threads -= 1
            if done.done():  # its time was up
                return
            if isinstance(error, StopIteration):  # a future refuses it
                done.set_exception(TargetError(f"{self._path} raised StopIteration"))
            elif error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = context.run(call)
            except BaseException as raised:  # handed to the waiting task
                error = raised
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(finish, result, error)

        self._threads += 1
        try:
            threading.Thread(target=run, name=f"headrace-{self._path}", daemon=True).start()
        except RuntimeError as error:  # the system has no more threads
            self._threads -= 1
            raise TargetError(f"no thread for {self._path}: {error}") from error
        return await done


def import_function(path: str) -> Callable[[Any], Any]:
    """Import `module:function` or `module.function`. Raises `ConfigError` that says what is missing."""
    module_name, attribute = _split(path)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ConfigError([f"cannot import {module_name!r} of {path!r}: {type(error).__name__}: {error}"]) from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError([f"{module_name!r} has no {attribute!r}, which {path!r} names"]) from None
    if not callable(found):
        raise ConfigError([f"{path!r} is not callable: it is of type {type(found).__name__}"])
    return found  # type: ignore[no-any-return]


def _split(path: str) -> tuple[str, str]:
    """The module and the attribute; one of them is empty where the path has only one part."""
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    return module, attribute
