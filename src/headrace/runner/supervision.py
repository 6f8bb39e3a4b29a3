"""What every kind of trigger run has in common: its task, its state for those who look, and an end within a deadline."""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from headrace.errors import SourceMisconfigured, StoreError
from headrace.runner.backoff import Backoff
from headrace.runner.identity import ask_identity
from headrace.runner.observer import Observer
from headrace.runner.specs import TriggerSpec
from headrace.runner.thread import contained
from headrace.store import Triggers, TriggerState
from headrace.triggers.base import BaseTrigger

T = TypeVar("T")

log = logging.getLogger(__name__)

END_TIMEOUT: Final = 5.0
"""Seconds that user code has to end after it was cancelled, and for each of `cleanup` and `on_kill`."""

USER_TASK: Final = "trigger:"
"""What the names of tasks that run a trigger's own code begin with; its id follows."""

_abandoned: set[asyncio.Task[Any]] = set()
"""Tasks of user code that did not end when they were cancelled: kept so that they are not lost before they do."""


class Phase(enum.StrEnum):
    """What a trigger is doing."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"
    """It raised on the event in hand and gets it again, after a backoff."""
    WAITING = "waiting"
    """It failed, or its stream did, and is started again after a backoff."""
    STANDBY = "standby"
    """Another replica runs it."""
    STOPPED = "stopped"
    FINISHED = "finished"


class Leave(enum.Enum):
    """How a stopped trigger leaves its stream."""

    PAUSED = enum.auto()
    """Not expected any more."""
    REMOVED = enum.auto()
    """Not expected any more, and what it watches is ended (`on_kill`)."""
    REPLACED = enum.auto()
    """Comes back at once: what is read meanwhile must not pass it by."""
    WITH_STREAM = enum.auto()
    """The stream itself is about to be stopped: what is not finished is left to redelivery."""


class Run(ABC):
    """One trigger, being run until it finishes or is stopped."""

    def __init__(self, spec: TriggerSpec, observer: Observer) -> None:
        self.spec = spec
        self.phase = Phase.STARTING
        self.restarts = 0
        self.last_error: BaseException | None = None
        self.is_misconfigured = False
        """Somebody has to change something before it can run."""
        self.task: asyncio.Task[None] | None = None
        self.on_finished: Callable[[Run], None] = lambda run: None
        """Called when it has ended by itself, for good, and that is stored."""
        self._observer = observer
        self._trigger: BaseTrigger | None = None
        self._user_task: asyncio.Task[Any] | None = None
        clock = asyncio.get_running_loop().time
        self._backoff = Backoff(0.5, 30.0, clock=clock)
        self._slow_backoff = Backoff(10.0, 300.0, calm=3600.0, clock=clock)

    @property
    def trigger_id(self) -> str:
        return self.spec.trigger_id

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run_for_ever(), name=f"run:{self.trigger_id}")

    def identity(self) -> Mapping[str, str]:
        """What its log lines are about."""
        return {"trigger": self.trigger_id}

    async def _run_for_ever(self) -> None:
        ask_identity.set(self.identity)  # for this task, and for those of the trigger's code that it starts
        while True:
            try:
                await self._run()
            except Exception as error:  # not the trigger's: those are caught where it is called
                log.exception("%s: its supervision failed, and begins again", self.trigger_id)
                self._failed(error)
                self.phase = Phase.WAITING
                await self._discard()
                await self._leave(Leave.REPLACED)
                await asyncio.sleep(self._backoff.next())
            else:
                return

    @abstractmethod
    async def _run(self) -> None:
        """Run the trigger until it has finished, and that is stored."""

    @abstractmethod
    async def _finish_event(self, grace: float) -> None:
        """Let the trigger's code finish what it has in hand, for at most `grace` seconds, and take nothing new."""

    @abstractmethod
    async def _leave(self, how: Leave) -> None:
        """Give up its place, or its lease, after its code has ended."""

    async def stop(self, how: Leave, grace: float) -> None:
        """Let the trigger finish what it has in hand within `grace` seconds, end it, and leave."""
        if self.phase is not Phase.FINISHED:
            await self._finish_event(grace)
        if self.task is not None and not await end_task(self.task, 3 * END_TIMEOUT):
            log.error("%s: its supervision does not end when it is cancelled", self.trigger_id)
        if how is Leave.REMOVED:
            await self._kill()
        await self._discard()
        await self._leave(how)
        if self.phase is not Phase.FINISHED:
            self.phase = Phase.STOPPED

    # One instance.

    def _build(self) -> BaseTrigger:
        """A fresh instance. Raises what its construction raises."""
        self._trigger = self.spec.build()
        return self._trigger

    async def _discard(self) -> None:
        """Clean the instance up: on every exit, within the deadline."""
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            await finish_within(f"{self.trigger_id}: cleanup", trigger.cleanup)

    def _running(self) -> None:
        self.phase = Phase.RUNNING
        self.is_misconfigured = False

    def _failed(self, error: BaseException) -> None:
        """Note an error that the trigger is run again after."""
        self.last_error = error
        self.restarts += 1
        self.is_misconfigured = isinstance(error, SourceMisconfigured)
        self._observer.on_trigger_restart(self.trigger_id, error)

    async def _kill(self) -> None:
        """Have what it watches ended, by the instance that runs or a fresh one."""
        try:
            trigger = self._trigger or self._build()
        except Exception as error:
            log.error("%s: on_kill needs an instance, and none can be built: %r", self.trigger_id, error)
        else:
            await finish_within(f"{self.trigger_id}: on_kill", trigger.on_kill)

    async def _end_user_task(self) -> None:
        task, self._user_task = self._user_task, None
        if task is not None and not task.done() and not await end_task(task, END_TIMEOUT):
            log.error("%s: does not end when it is cancelled, and is left behind", self.trigger_id)

    async def _store_finished(self, triggers: Triggers, why: str) -> None:
        """Make it durable that the trigger has ended by itself, however long that takes."""
        while True:
            try:
                await triggers.set_state(self.trigger_id, TriggerState.FINISHED, why)
            except StoreError as error:
                log.warning("%s: has finished, which cannot be stored now: %s", self.trigger_id, error)
                await asyncio.sleep(self._backoff.next())
            else:
                self.phase = Phase.FINISHED
                self.on_finished(self)
                return

    def _start_user_task(self, code: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Run the trigger's own code in a task that carries its name."""
        task = asyncio.get_running_loop().create_task(contained(code), name=f"{USER_TASK}{self.trigger_id}")
        self._user_task = task
        return task


class UnbuiltRun(Run):
    """A trigger that cannot be built, so that nobody knows what it watches. It is tried again, slowly."""

    def __init__(self, spec: TriggerSpec, observer: Observer, error: Exception, on_built: Callable[[TriggerSpec], None]) -> None:
        super().__init__(spec, observer)
        self._error = error
        self._on_built = on_built

    async def _run(self) -> None:
        error: Exception | None = self._error
        while error is not None:
            log.error("%s: cannot be built: %r", self.trigger_id, error, exc_info=error)
            self.phase = Phase.WAITING
            self._failed(error)
            self.is_misconfigured = True
            await asyncio.sleep(self._slow_backoff.next())
            try:
                self._build()
                error = None
            except Exception as raised:
                error = raised
        await self._discard()
        self._on_built(self.spec)

    async def _finish_event(self, grace: float) -> None:
        """It has none."""

    async def _leave(self, how: Leave) -> None:
        """It has no place."""


async def end_task(task: asyncio.Task[Any], timeout: float) -> bool:
    """Cancel a task and wait for it, whatever it raises; whether it ended in time."""
    task.cancel()
    await asyncio.wait({task}, timeout=timeout)
    if task.done():
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("%s ended with %r when it was cancelled", task.get_name(), error)
        return True
    _abandoned.add(task)
    task.add_done_callback(_abandoned.discard)
    return False


async def finish_within(what: str, function: Callable[[], Awaitable[None]], timeout: float = END_TIMEOUT) -> None:
    """Await a piece of user code within a deadline; its errors are logged."""
    task = asyncio.get_running_loop().create_task(contained(function), name=what)
    try:
        await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=timeout)
        raise
    finally:
        if not task.done():
            left_behind = "" if await end_task(task, timeout=0.1) else ", nor when it was cancelled: it is left behind"
            log.error("%s did not end within %s s%s", what, timeout, left_behind)
    if task.done() and not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s raised %r", what, error, exc_info=error)
