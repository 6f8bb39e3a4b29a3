"""The store: derived events in SQL before anything is said to a broker, and the outbox they are dispatched from.

`Store` opens a database and has the parts; `Writer` stores units in groups; `model` is the data that goes in and out.
"""

from headrace.store.attempts import Attempts
from headrace.store.dead_letters import DeadLetters
from headrace.store.events import Events
from headrace.store.identity import event_identity
from headrace.store.leases import Leases
from headrace.store.model import (
    SETTLED,
    Attempt,
    Backlog,
    Cause,
    DeadLetter,
    DeadLetterRecord,
    EventFilter,
    EventRecord,
    EventState,
    GroupReport,
    Lease,
    StoredEvent,
    Swept,
    TriggerDefinition,
    TriggerRecord,
    TriggerState,
    Unit,
)
from headrace.store.outbox import Outbox
from headrace.store.store import Store, Topic
from headrace.store.triggers import Triggers
from headrace.store.writer import Writer

__all__ = [
    "SETTLED",
    "Attempt",
    "Attempts",
    "Backlog",
    "Cause",
    "DeadLetter",
    "DeadLetterRecord",
    "DeadLetters",
    "EventFilter",
    "EventRecord",
    "EventState",
    "Events",
    "GroupReport",
    "Lease",
    "Leases",
    "Outbox",
    "Store",
    "StoredEvent",
    "Swept",
    "Topic",
    "TriggerDefinition",
    "TriggerRecord",
    "TriggerState",
    "Triggers",
    "Unit",
    "Writer",
    "event_identity",
]
