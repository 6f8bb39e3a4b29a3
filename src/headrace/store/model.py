"""What goes into the store and what comes out of it: plain data, no database.

A `Unit` is what one trigger derived from one delivery: it is stored whole or not at all, and once. Its events then go
through the states of `EventState` until they are settled. Times are epoch seconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from headrace.connector import Message
from headrace.triggers.base import TriggerEvent

Cause = Literal["rejected", "failed", "unstorable", "target"]
"""Why a message is a dead letter: its filter refused it, or raised too often, the store cannot hold it, a target refuses it."""


class EventState(StrEnum):
    """Where a stored event is on its way to its target."""

    PENDING = "pending"
    """Waits to be claimed, now or at the end of a backoff."""
    DISPATCHING = "dispatching"
    """Claimed by a dispatcher, until its claim expires."""
    DEFERRED = "deferred"
    """Handed over; the target's outcome is awaited."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up after the last attempt, refused, or too old. `Events.retry` makes it pending again."""
    PURGED = "purged"
    """Taken out by hand. Its identity is kept, so a redelivery of its message changes nothing."""


SETTLED = (EventState.DELIVERED, EventState.DEAD, EventState.PURGED)
"""The states nothing happens in by itself any more."""


class TriggerState(StrEnum):
    """What a user, or its own end, made of a trigger. Outlives restarts."""

    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    """It ended by itself, for good, until its definition changes."""
    FAILED = "failed"
    """It cannot be run (its class is gone, its arguments are refused), until its definition changes or it is resumed."""
    REMOVED = "removed"


@dataclass(slots=True)
class DeadLetter:
    """A message given up for one trigger, with all that is needed to look at it or to hand it in again."""

    cause: Cause
    reason: str
    traceback: str | None = None
    attempts: int = 1
    message: Message | None = None
    """The original bytes, key and headers, source and timestamp; None where the raw event is not a `Message`."""


@dataclass(slots=True)
class Unit:
    """What one trigger derived from one delivery: its events, or a dead letter instead.

    With `message_id` it is unique by (trigger, message id). Without: `lease_token` makes it an event of a streamless trigger,
    unique by (trigger, `dedupe_key`) if its one event has a key, else by (trigger, token, `first_index`); and with neither it
    is always new.
    """

    trigger_id: str
    stream: str | None
    message_id: str | None
    events: Sequence[TriggerEvent] = field(default=(), repr=False)
    lane: str | None = None
    published_at: float | None = None
    lease_token: int | None = None
    first_index: int = 0
    """How many events this trigger fired before under its lease token. Streamless triggers only."""
    dead: DeadLetter | None = None
    context: Any = None
    """The submitter's own; not stored."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A derived event as the store has it. From `Outbox.claim` it carries the claim that the marks are checked against."""

    id: int
    """Its row; grows in the order in which a trigger's units were submitted."""
    identity: str
    """ASCII, the same for ever, different for every event: `trigger:message:index`, and `.gN` from generation 1 on."""
    trigger_id: str
    stream: str | None
    message_id: str
    """The message's id as identities have it (`identity.py`), or what stands for it where there is none."""
    index: int
    generation: int
    payload: Any = field(repr=False)
    """Decoded JSON; None once retention has deleted it (`has_payload` is then False)."""
    has_payload: bool
    dedupe_key: str | None
    lane: str | None
    published_at: float | None
    stored_at: float
    priority: int
    pool: str
    pool_slots: int
    attempt: int
    """Claims since it was stored or last retried by hand; in a claimed event the present one is counted: 1 is the first."""
    owner: str | None = None
    """Who claimed it last."""
    token: int = 0
    """Grows with every claim: a mark made under an older one has no effect."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to hand an event to its target."""

    token: int
    owner: str
    started_at: float
    ended_at: float
    outcome: Literal["delivered", "retry", "dead", "expired"]
    """`expired`: the claim ran out without an answer, its dispatcher died or hung."""
    answer: str
    """What the target said, shortened."""


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event for somebody who looks at it."""

    event: StoredEvent
    state: EventState
    due_at: float | None
    """When its backoff, or its claim, ends."""
    settled_at: float | None
    last_answer: str | None
    history: tuple[Attempt, ...] = ()
    """Filled in by `Events.show`, oldest first; deleted together with the payload."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events: all conditions that are given must hold; the empty filter means every event."""

    ids: Sequence[int] | None = None
    identities: Sequence[str] | None = None
    trigger_id: str | None = None
    stream: str | None = None
    states: Sequence[EventState] | None = None
    older_than: float | None = None
    """Seconds since it was stored, at least."""
    newer_than: float | None = None
    """Seconds since it was stored, less than."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in the outbox; cheap to ask for at any size of the store."""

    pending: int
    dispatching: int
    deferred: int
    dead: int
    oldest_pending_age: float | None
    """Seconds since the oldest pending event was stored."""
    pending_by_trigger: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A stored dead letter. The message and traceback are filled in by `DeadLetters.show` only."""

    id: int
    trigger_id: str
    stream: str | None
    message_id: str
    cause: Cause
    reason: str
    attempts: int
    source: str | None
    published_at: float | None
    stored_at: float
    size: int
    """Bytes of value, key and headers."""
    traceback: str | None = field(default=None, repr=False)
    message: Message | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TriggerDefinition:
    """A trigger as the config or its registration says it."""

    trigger_id: str
    class_path: str
    kwargs: Mapping[str, Any] = field(repr=False)
    """JSON values; encrypted in the store where it has keys."""
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class TriggerRecord:
    """A registered trigger. `revision` is the store's number of its last change."""

    definition: TriggerDefinition
    state: TriggerState
    reason: str | None
    revision: int
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run something, until it expires. The token grows with every new holder."""

    name: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One group commit, for metrics."""

    units: int
    new_units: int
    """Without those that were stored already."""
    new_events: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Swept:
    """What one retention sweep deleted."""

    payloads: int
    identities: int
    dead_letters: int
    attempts: int
