"""Events whose trigger has no target any more: they stay pending, and are reported, never dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import structlog

from headrace.dispatch.observer import DispatchObserver
from headrace.dispatch.outbox import STORE_BACKOFF, DispatchStore, log_store_error
from headrace.store import EventFilter, EventState

INTERVAL: Final = 60.0
"""Seconds between looks."""

logger = structlog.stdlib.get_logger("headrace.dispatch")


class UntargetedWatch:
    """Knows in `found` which registered triggers have events pending and no target. Tells the observer and the log of changes."""

    def __init__(self, store: DispatchStore, observer: DispatchObserver) -> None:
        self.found: frozenset[str] = frozenset()
        self._store = store
        self._observer = observer
        self._targeted: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def watch(self, targeted: Collection[str]) -> None:
        """These triggers have targets now."""
        self._targeted = frozenset(targeted)
        self._changed.set()

    async def run(self) -> None:
        """Look now, at each change, and once in a while."""
        failures = 0
        while True:
            self._changed.clear()
            try:
                self._report(await self._look())
                failures = 0
            except Exception as error:
                failures += 1
                log_store_error("nobody looks for events without a target", error, first=failures == 1)
            with suppress(TimeoutError):
                async with asyncio.timeout(STORE_BACKOFF.delay(failures) if failures else INTERVAL):
                    await self._changed.wait()

    async def _look(self) -> frozenset[str]:
        # One question for each such trigger: they are few, and counting all events is not cheap.
        found = []
        for record in await self._store.triggers.all():
            trigger_id = record.definition.trigger_id
            if trigger_id not in self._targeted:
                pending = EventFilter(trigger_id=trigger_id, states=[EventState.PENDING])
                if await self._store.events.find(pending, limit=1):
                    found.append(trigger_id)
        return frozenset(found)

    def _report(self, found: frozenset[str]) -> None:
        if found == self.found:
            return
        self.found = found
        self._observer.untargeted(found)
        if found:
            logger.warning("events wait for triggers that have no target in the config", triggers=sorted(found))
