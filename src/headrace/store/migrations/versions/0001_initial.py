"""Units and their events, dead letters, attempts, triggers and leases."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "headrace_unit",
        sa.Column("id", Id, primary_key=True),
        sa.Column("trigger_id", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("stream", sa.Text),
        sa.Column("lane", sa.Text),
        sa.Column("published_at", sa.Double),
        sa.Column("generation", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("forgotten", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("stored_at", sa.Double, nullable=False),
        sa.UniqueConstraint("trigger_id", "message_id", name="headrace_unit_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("headrace_unit_stored_at", "headrace_unit", ["stored_at"])

    op.create_table(
        "headrace_event",
        sa.Column("id", Id, primary_key=True),
        sa.Column(
            "unit_id", Id, sa.ForeignKey("headrace_unit.id", ondelete="CASCADE", name="headrace_event_unit"), nullable=False
        ),
        sa.Column("trigger_id", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("idx", sa.Integer, nullable=False),
        sa.Column("dedupe_key", sa.Text),
        sa.Column("payload", sa.Text),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'pending'")),
        sa.Column("priority", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.Column("pool", sa.Text, nullable=False, server_default=sa.text("'default_pool'")),
        sa.Column("pool_slots", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("token", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.Column("owner", sa.Text),
        sa.Column("answer", sa.Text),
        sa.Column("stored_at", sa.Double, nullable=False),
        sa.Column("claimed_at", sa.Double),
        sa.Column("due_at", sa.Double),
        sa.Column("settled_at", sa.Double),
        sa.UniqueConstraint("unit_id", "generation", "idx", name="headrace_event_key"),
        sqlite_autoincrement=True,
    )
    _partial_index("dedupe", "trigger_id", "dedupe_key", where="dedupe_key IS NOT NULL", unique=True)
    _partial_index("ready", sa.text("priority DESC"), "id", "trigger_id", where="state = 'pending' AND due_at IS NULL")
    _partial_index("due", "due_at", where="due_at IS NOT NULL")
    _partial_index("open", "state", "trigger_id", "stored_at", where="state IN ('pending', 'dispatching', 'deferred', 'dead')")
    _partial_index("kept", "settled_at", where="settled_at IS NOT NULL AND payload IS NOT NULL")

    op.create_table(
        "headrace_attempt",
        sa.Column(
            "event_id", Id, sa.ForeignKey("headrace_event.id", ondelete="CASCADE", name="headrace_attempt_event"), nullable=False
        ),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("event_id", "token", name="headrace_attempt_key"),
        sqlite_with_rowid=False,
    )

    op.create_table(
        "headrace_dead_letter",
        sa.Column("id", Id, primary_key=True),
        sa.Column(
            "unit_id", Id, sa.ForeignKey("headrace_unit.id", ondelete="CASCADE", name="headrace_dead_letter_unit"), nullable=False
        ),
        sa.Column("trigger_id", sa.Text, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("traceback", sa.Text),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("source", sa.Text),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("content", sa.Text),
        sa.Column("stored_at", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("headrace_dead_letter_unit_id", "headrace_dead_letter", ["unit_id"])
    op.create_index("headrace_dead_letter_stored_at", "headrace_dead_letter", ["stored_at"])

    op.create_table(
        "headrace_filter_attempt",
        sa.Column("trigger_id", sa.Text, nullable=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("trigger_id", "message_id", name="headrace_filter_attempt_key"),
        sqlite_with_rowid=False,
    )
    op.create_index("headrace_filter_attempt_updated_at", "headrace_filter_attempt", ["updated_at"])

    op.create_table(
        "headrace_trigger",
        sa.Column("trigger_id", sa.Text, nullable=False),
        sa.Column("class_path", sa.Text, nullable=False),
        sa.Column("kwargs", sa.Text, nullable=False),
        sa.Column("stream", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("trigger_id", name="headrace_trigger_key"),
    )
    op.create_index("headrace_trigger_revision", "headrace_trigger", ["revision"])

    revisions = op.create_table("headrace_revision", sa.Column("last", sa.BigInteger, nullable=False))
    op.bulk_insert(revisions, [{"last": 0}])

    op.create_table(
        "headrace_lease",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("name", name="headrace_lease_key"),
    )

    if op.get_bind().dialect.name == "postgresql":
        # Every event is updated a few times and its old row versions lie in the way of claims: vacuum it early.
        op.execute("ALTER TABLE headrace_event SET (autovacuum_vacuum_scale_factor = 0.02, fillfactor = 85)")


def _partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(
        f"headrace_event_{name}",
        "headrace_event",
        list(columns),
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )
