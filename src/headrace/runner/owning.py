"""A trigger without a stream: its `run()` is run by the one process that holds its lease.

Its events carry the lease's token: those without a `dedupe_key` are unique under it, and may repeat after a take-over. A `run()`
that returns after an event has finished for good; one that returns without an event, or raises, failed and is run again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from headrace.errors import StoreError
from headrace.runner.keeping import whereabouts
from headrace.runner.leases import LeaseKeeper
from headrace.runner.observer import Observer
from headrace.runner.specs import TriggerSpec
from headrace.runner.submitter import Origin, Submitter
from headrace.runner.supervision import END_TIMEOUT, Leave, Phase, Run
from headrace.store import Lease, Store, Unit
from headrace.triggers.base import BaseTrigger, TriggerEvent

log = logging.getLogger(__name__)

STANDBY_SECONDS: Final = 5.0
"""How often one that does not own the trigger looks whether it may."""


class OwnedRun(Run):
    """See the module."""

    def __init__(self, spec: TriggerSpec, keeper: LeaseKeeper, *, store: Store, submitter: Submitter, observer: Observer) -> None:
        super().__init__(spec, observer)
        self._keeper = keeper
        self._store = store
        self._submitter = submitter
        self._lease: Lease | None = None
        self._fired = 0
        """Events under the present lease."""
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def _run(self) -> None:
        while True:
            if self._lease is None:
                await self._own()
            error = await self._drive()
            if self._lease is None:
                await self._discard()
                continue  # another has it: its trigger did not fail
            if error is None:
                await self._finish()
                return
            log.warning("%s: failed: %s", self.trigger_id, whereabouts(error))
            self._failed(error)
            self.phase = Phase.WAITING
            await self._discard()
            await asyncio.sleep((self._slow_backoff if self.is_misconfigured else self._backoff).next())

    async def _own(self) -> None:
        """Wait until the trigger is this process's to run."""
        while True:
            try:
                self._lease = await self._keeper.acquire(f"trigger:{self.trigger_id}", self._on_lost)
            except StoreError as error:
                log.warning("%s: cannot be owned now: %s", self.trigger_id, error)
            if self._lease is not None:
                self._fired = 0
                return
            self.phase = Phase.STANDBY
            await asyncio.sleep(STANDBY_SECONDS)

    def _on_lost(self) -> None:
        self._lease = None
        if self._user_task is not None:
            self._user_task.cancel()

    async def _drive(self) -> BaseException | None:
        """One `run()`: None if it returned after an event, else what went wrong."""
        try:
            trigger = self._build()
        except Exception as failure:
            return failure
        lease = self._lease
        assert lease is not None
        self._running()
        task = self._start_user_task(lambda: self._fire(trigger, lease))
        try:
            await asyncio.wait((task,))
        finally:
            await self._end_user_task()
        if task.cancelled():
            return RuntimeError("run() was cancelled by its own code")
        if (error := task.exception()) is not None:
            return error
        return None if task.result() else RuntimeError("run() returned without an event")

    async def _fire(self, trigger: BaseTrigger, lease: Lease) -> bool:
        """Whether it fired."""
        has_fired = False
        events = trigger.run()
        try:
            async for event in events:
                if not isinstance(event, TriggerEvent):
                    raise TypeError(f"run() yields TriggerEvent, not {type(event).__name__}")
                has_fired = True
                self._submit(event, lease)
                if self._submitter.is_congested:
                    await self._submitter.room()
        finally:
            if (aclose := getattr(events, "aclose", None)) is not None:
                await aclose()
        return has_fired

    def _submit(self, event: TriggerEvent, lease: Lease) -> None:
        self._unanswered += 1
        self._idle.clear()
        self._submitter.submit(
            Unit(
                self.trigger_id,
                None,
                None,
                [event],
                lease_token=lease.token,
                first_index=self._fired,
                context=Origin(raw=event.payload, on_answer=self._answered),
            )
        )
        self._fired += 1

    def _answered(self, stored: bool) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._idle.set()

    async def _finish(self) -> None:
        await self._discard()
        await self._idle.wait()
        await self._store_finished(self._store.triggers, "its run() returned after an event")
        await self._leave(Leave.PAUSED)

    async def _finish_event(self, grace: float) -> None:
        """It has no event in hand: it is cancelled where it is."""

    async def _leave(self, how: Leave) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT):
                await self._idle.wait()
        if (lease := self._lease) is not None:
            self._lease = None
            await self._keeper.release(lease)
