"""The tables, as `migrations/` builds them, for the queries that are written with SQLAlchemy.

A unit is what a trigger derived from one delivery; its events hang on it. Times are epoch seconds by the database's clock.
The partial indexes of `headrace_event` are what keeps claims as cheap beside a million delivered events as beside none:

- `ready`: pending, may be claimed now, in the order of claims (with the trigger: who has no target is passed over quickly);
- `due`: waits for a moment, the end of a backoff (pending) or of a claim (dispatching);
- `open`: not delivered or purged, for counting what waits and for finding the dead;
- `kept`: settled, its payload not yet deleted, for retention.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

metadata = MetaData()

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite numbers rows by itself only in an INTEGER PRIMARY KEY

NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(extract(epoch FROM statement_timestamp()) AS double precision)",
}
"""The database's clock, in epoch seconds, by dialect. Milliseconds on SQLite."""


class now(FunctionElement[float]):  # noqa: N801  # written like the SQL function it is
    """The database's clock in an SQLAlchemy expression."""

    type = Double()
    inherit_cache = True


@compiles(now)
def _compile_now(element: now, compiler: Any, **options: Any) -> str:
    return NOW[compiler.dialect.name]


unit = Table(
    "headrace_unit",
    metadata,
    Column("id", Id, primary_key=True),
    Column("trigger_id", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("stream", Text),
    Column("lane", Text),
    Column("published_at", Double),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("forgotten", Boolean, nullable=False, server_default=text("false")),
    Column("batch", BigInteger, nullable=False),  # the group commit it came with: how SQLite tells a group's new units
    Column("stored_at", Double, nullable=False),
    UniqueConstraint("trigger_id", "message_id", name="headrace_unit_key"),
    Index("headrace_unit_stored_at", "stored_at"),
    sqlite_autoincrement=True,
)

event = Table(
    "headrace_event",
    metadata,
    Column("id", Id, primary_key=True),
    Column("unit_id", Id, ForeignKey(unit.c.id, ondelete="CASCADE", name="headrace_event_unit"), nullable=False),
    Column("trigger_id", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("idx", Integer, nullable=False),
    Column("dedupe_key", Text),
    Column("payload", Text),
    Column("size", Integer, nullable=False),  # bytes of the payload: claims are bounded by it
    Column("state", Text, nullable=False, server_default=text("'pending'")),
    Column("priority", Integer, nullable=False, server_default=text("1")),
    Column("pool", Text, nullable=False, server_default=text("'default_pool'")),
    Column("pool_slots", Integer, nullable=False, server_default=text("1")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("token", BigInteger, nullable=False, server_default=text("0")),
    Column("owner", Text),
    Column("answer", Text),
    Column("stored_at", Double, nullable=False),
    Column("claimed_at", Double),
    Column("due_at", Double),
    Column("settled_at", Double),
    UniqueConstraint("unit_id", "generation", "idx", name="headrace_event_key"),
    sqlite_autoincrement=True,
)

OPEN = "state IN ('pending', 'dispatching', 'deferred', 'dead')"
KEPT = "settled_at IS NOT NULL AND payload IS NOT NULL"
"""Conditions of partial indexes. SQLite uses such an index only for a query that has its condition word for word."""


def _partial(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


_partial("headrace_event_dedupe", event.c.trigger_id, event.c.dedupe_key, where="dedupe_key IS NOT NULL", unique=True)
_partial(
    "headrace_event_ready", event.c.priority.desc(), event.c.id, event.c.trigger_id, where="state = 'pending' AND due_at IS NULL"
)
_partial("headrace_event_due", event.c.due_at, where="due_at IS NOT NULL")
_partial("headrace_event_open", event.c.state, event.c.trigger_id, event.c.stored_at, where=OPEN)
_partial("headrace_event_kept", event.c.settled_at, where=KEPT)

attempt = Table(
    "headrace_attempt",
    metadata,
    Column("event_id", Id, ForeignKey(event.c.id, ondelete="CASCADE", name="headrace_attempt_event"), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("answer", Text, nullable=False),
    PrimaryKeyConstraint("event_id", "token", name="headrace_attempt_key"),
    sqlite_with_rowid=False,
)

dead_letter = Table(
    "headrace_dead_letter",
    metadata,
    Column("id", Id, primary_key=True),
    Column("unit_id", Id, ForeignKey(unit.c.id, ondelete="CASCADE", name="headrace_dead_letter_unit"), nullable=False),
    Column("trigger_id", Text, nullable=False),
    Column("cause", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("traceback", Text),
    Column("attempts", Integer, nullable=False),
    Column("source", Text),
    Column("size", Integer, nullable=False),
    Column("content", Text),  # the message, sealed
    Column("stored_at", Double, nullable=False),
    Index("headrace_dead_letter_unit_id", "unit_id"),
    Index("headrace_dead_letter_stored_at", "stored_at"),
    sqlite_autoincrement=True,
)

filter_attempt = Table(
    "headrace_filter_attempt",
    metadata,
    Column("trigger_id", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
    PrimaryKeyConstraint("trigger_id", "message_id", name="headrace_filter_attempt_key"),
    Index("headrace_filter_attempt_updated_at", "updated_at"),
    sqlite_with_rowid=False,
)

trigger = Table(
    "headrace_trigger",
    metadata,
    Column("trigger_id", Text, nullable=False),
    Column("class_path", Text, nullable=False),
    Column("kwargs", Text, nullable=False),  # JSON, sealed
    Column("stream", Text),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("revision", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    PrimaryKeyConstraint("trigger_id", name="headrace_trigger_key"),
    Index("headrace_trigger_revision", "revision"),
)

revision = Table(
    "headrace_revision",
    metadata,
    Column("last", BigInteger, nullable=False),  # one row: its lock puts the changes of triggers into one order
)

lease = Table(
    "headrace_lease",
    metadata,
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("expires_at", Double, nullable=False),
    PrimaryKeyConstraint("name", name="headrace_lease_key"),
)
