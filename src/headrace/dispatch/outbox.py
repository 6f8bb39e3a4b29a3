"""What the dispatcher needs of the store; `headrace.store.Store` has it, and says what each method does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Protocol

import structlog

from headrace.dispatch.backoff import Backoff
from headrace.errors import StoreUnavailable
from headrace.store import EventFilter, EventRecord, StoredEvent, TriggerRecord

logger = structlog.stdlib.get_logger("headrace.dispatch")


class Outbox(Protocol):
    """Claims and marks."""

    async def claim(
        self, owner: str, limit: int, lease_seconds: float, *, triggers: Collection[str] | None = None
    ) -> list[StoredEvent]: ...
    async def renew(self, events: Collection[StoredEvent], lease_seconds: float) -> set[int]: ...
    async def mark_delivered(self, event: StoredEvent, answer: str = "") -> bool: ...
    async def mark_retry(self, event: StoredEvent, delay: float, answer: str) -> bool: ...
    async def mark_dead(self, event: StoredEvent, answer: str) -> bool: ...
    async def release(self, events: Collection[StoredEvent]) -> None: ...


class Triggers(Protocol):
    """Who is registered."""

    async def all(self) -> Sequence[TriggerRecord]: ...


class Events(Protocol):
    """What is stored."""

    async def find(self, where: EventFilter, *, limit: int) -> Sequence[EventRecord]: ...


class DispatchStore(Protocol):
    """A store, as far as the dispatcher goes."""

    @property
    def outbox(self) -> Outbox: ...
    @property
    def triggers(self) -> Triggers: ...
    @property
    def events(self) -> Events: ...


STORE_BACKOFF: Final = Backoff(first=0.1, longest=5.0)
"""How long to wait for a store that is away."""


def log_store_error(what: str, error: Exception, *, first: bool) -> None:
    """One line an outage (the `first` error of it), not one a try. What is no outage is a bug: each time, with its traceback."""
    if not isinstance(error, StoreUnavailable):
        logger.error(what, exc_info=error)
    elif first:
        logger.warning(what, error=str(error))
