"""The store: one database, opened, migrated, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from headrace.store.model import (
    Backlog,
    DeadLetterRecord,
    EventFilter,
    EventRecord,
    EventState,
    Lease,
    StoredEvent,
    Swept,
    TriggerDefinition,
    TriggerRecord,
    TriggerState,
)

Topic = Literal["events", "triggers"]


class Store:
    """One database. Every method is one short transaction and raises `StoreUnavailable` when the database does not answer:
    nothing happened then, or, if only the answer was lost, doing it again is harmless."""

    attempts: Attempts
    triggers: Triggers
    leases: Leases
    outbox: Outbox
    events: Events
    dead_letters: DeadLetters

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        secret_keys: Sequence[str] = (),
        exclusive: bool = False,
        max_payload_bytes: int = 8 * 2**20,
        busy_timeout: float = 5.0,
        connect_timeout: float = 10.0,
        close_timeout: float = 10.0,
    ) -> Store:
        """Connect and migrate. `url`: `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://user:pass@host/db`.

        `exclusive` is for `serve`: on SQLite a second one on the same file gets `StoreInUse`; on PostgreSQL replicas share.
        Raises `ConfigError` (the URL or a key is wrong, the server refuses the credentials), `StoreUnavailable` (try again),
        `StoreTooNew`, `StoreInUse`.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Release connections, threads and the file lock, within `close_timeout`."""

    @property
    def url(self) -> str:
        """The address without its password."""
        raise NotImplementedError

    async def now(self) -> float:
        """The database's clock, in epoch seconds."""
        raise NotImplementedError

    async def watch(self, on_change: Callable[[Topic], None]) -> None:
        """Call `on_change` when another process stored events or changed a trigger, until `aclose`. Only PostgreSQL can tell
        (LISTEN/NOTIFY, on a connection of its own); where it cannot, this says so in the log. It is a shortcut and never a
        promise: whoever uses it polls as well."""

    async def sweep(
        self,
        *,
        retention: float,
        dead_retention: float = 30 * 86400.0,
        dedupe_retention: float = 14 * 86400.0,
        batch: int = 500,
    ) -> Swept:
        """Delete the payloads of events delivered or purged `retention` seconds ago, of dead events and dead letters after
        `dead_retention`, and identities `dedupe_retention` after the last event of their unit was settled. In batches, each
        a short transaction; cancel at any time."""
        raise NotImplementedError


class Attempts:
    """How often a filter failed on a message. Kept over restarts, until the message's unit is stored."""

    async def bump(self, trigger_id: str, message_id: str, error: str) -> int:
        """Count one more, and return how many that makes."""
        raise NotImplementedError

    async def get(self, trigger_id: str, message_id: str) -> int:
        """How many there are."""
        raise NotImplementedError

    async def clear(self, trigger_id: str, message_id: str) -> None:
        """Forget them: the filter got through the message and derived nothing."""


class Triggers:
    """The registered triggers, and what users made of them."""

    async def register(self, definitions: Sequence[TriggerDefinition]) -> list[TriggerRecord]:
        """Add or update; returns them in the same order. An unchanged trigger keeps its state and revision; a changed one
        that had finished or failed is active again; paused and removed stay what the user made them."""
        raise NotImplementedError

    async def all(self) -> list[TriggerRecord]:
        """All, by id, the removed ones too."""
        raise NotImplementedError

    async def set_state(self, trigger_id: str, state: TriggerState, reason: str | None = None) -> TriggerRecord:
        """Pause, resume, finish, fail or remove. Raises `LookupError` for an unknown trigger."""
        raise NotImplementedError

    async def changed_since(self, revision: int) -> list[TriggerRecord]:
        """Those changed after that revision, by revision: keep the last one's for the next call. Cheap when there are none."""
        raise NotImplementedError


class Leases:
    """Who runs what: fenced, by the database's clock. Renew at a third of the length."""

    async def acquire(self, name: str, owner: str, seconds: float) -> Lease | None:
        """Take a lease that is free or expired, with a new token; None while another owner holds it. `owner` names one
        process's life: the same owner gets its own lease again, with a new token."""
        raise NotImplementedError

    async def renew(self, leases: Collection[Lease], seconds: float) -> set[str]:
        """Prolong them all; returns the names that are still held. What is missing was taken over: stop it."""
        raise NotImplementedError

    async def release(self, leases: Collection[Lease]) -> None:
        """Give them up, so that others need not wait; without effect on those that were taken over."""


class Outbox:
    """The dispatcher's side: claims and marks. Marks that come together are stored together."""

    async def claim(
        self, owner: str, limit: int, lease_seconds: float, *, triggers: Collection[str] | None = None
    ) -> list[StoredEvent]:
        """Take up to `limit` events that are due, by priority, then age; also those whose claim expired. They are this
        owner's for `lease_seconds`, and no one else's. `triggers`: of these only."""
        raise NotImplementedError

    async def renew(self, events: Collection[StoredEvent], lease_seconds: float) -> set[int]:
        """Prolong claims; returns the ids still held. What is missing was taken over: cancel the call."""
        raise NotImplementedError

    async def mark_delivered(self, event: StoredEvent, answer: str = "") -> bool:
        """The target has it. False: the claim was lost, another has it now, and this had no effect. So for all marks."""
        raise NotImplementedError

    async def mark_retry(self, event: StoredEvent, delay: float, answer: str) -> bool:
        """Not this time: pending again in `delay` seconds."""
        raise NotImplementedError

    async def mark_dead(self, event: StoredEvent, answer: str) -> bool:
        """Never: given up."""
        raise NotImplementedError

    async def release(self, events: Collection[StoredEvent]) -> None:
        """Give claims back untried: pending at once, the attempt is not counted."""

    async def next_due(self) -> float | None:
        """Seconds until the next event is due (a backoff or a claim ends; 0 if one is due now); None: nothing waits."""
        raise NotImplementedError

    async def backlog(self) -> Backlog:
        """What waits."""
        raise NotImplementedError


class Events:
    """The user's side: look at events, and change their fate by hand."""

    async def find(self, where: EventFilter = EventFilter(), *, limit: int = 50, before: int | None = None) -> list[EventRecord]:  # noqa: B008
        """Newest first. The next page: `before` = the last one's id."""
        raise NotImplementedError

    async def show(self, ref: int | str) -> EventRecord | None:
        """One event by id or identity, with the history of its attempts."""
        raise NotImplementedError

    async def counts(self) -> dict[tuple[str, EventState], int]:
        """Events by trigger and state. Reads all of them: not for every second."""
        raise NotImplementedError

    async def retry(self, where: EventFilter, *, new_generation: bool = False) -> int:
        """Make dead events pending again, with fresh attempts; returns how many. `new_generation`: delivered ones too, under a
        new identity, so that a target takes them as new."""
        raise NotImplementedError

    async def forget(self, where: EventFilter) -> int:
        """Let the messages of these events be derived again when they are delivered again, as a new generation. Their events
        that are not settled are purged. Returns how many messages."""
        raise NotImplementedError

    async def purge(self, where: EventFilter) -> int:
        """Take events out: never dispatched, payload deleted, identity kept. Leaves those being dispatched. Returns how many."""
        raise NotImplementedError

    async def expire(self, max_age: float, *, trigger_id: str | None = None) -> int:
        """Mark pending events dead that were stored more than `max_age` seconds ago. Returns how many."""
        raise NotImplementedError


class DeadLetters:
    """Messages given up."""

    async def find(
        self, *, trigger_id: str | None = None, cause: str | None = None, limit: int = 50, before: int | None = None
    ) -> list[DeadLetterRecord]:
        """Newest first, without message and traceback. The next page: `before` = the last one's id."""
        raise NotImplementedError

    async def show(self, id: int) -> DeadLetterRecord | None:
        """One, with its message and traceback. Raises `SecretKeyMissing`."""
        raise NotImplementedError

    async def counts(self) -> Mapping[tuple[str, str], int]:
        """Dead letters by trigger and cause."""
        raise NotImplementedError

    async def forget(self, ids: Collection[int]) -> int:
        """Let these messages be derived again when they are delivered again. The dead letters stay to be looked at."""
        raise NotImplementedError

    async def purge(self, ids: Collection[int]) -> int:
        """Delete their content; the identities are kept."""
        raise NotImplementedError
