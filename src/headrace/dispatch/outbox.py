"""What the dispatcher needs of the store: the outbox, seen from its far end. `headrace.store.Store` has it.

A claim is a lease with a fencing token. Every call that changes a claimed event carries its token and does nothing where the
token is no longer the row's, so that a replica that was too slow cannot overwrite what the next one did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol


class StoredEvent(Protocol):
    """A derived event, as targets get it. Read-only."""

    @property
    def id(self) -> str: ...  # the identity: the same whenever the event is sent
    @property
    def trigger_id(self) -> str: ...
    @property
    def stream(self) -> str | None: ...
    @property
    def message_id(self) -> str | None: ...
    @property
    def payload(self) -> Any: ...
    @property
    def generation(self) -> int: ...
    @property
    def published_at(self) -> float | None: ...  # epoch seconds
    @property
    def stored_at(self) -> float: ...  # epoch seconds, by the database's clock
    @property
    def attempts(self) -> int: ...  # calls that ended with an answer, before this one


class OutboxStore(Protocol):
    """All of it raises `StoreUnavailable` while the database is away."""

    async def claim(self, owner: str, wanted: Mapping[str, int], lease_seconds: float) -> Sequence[StoredEvent]:
        """Claim up to so many events of each trigger, oldest first: pending and due, or under a lease that has run out."""
        ...

    async def renew_claims(self, events: Sequence[StoredEvent], lease_seconds: float) -> Collection[str]:
        """Start the leases anew. Returns the ids of those that are still held."""
        ...
