"""Brings a database to the schema this Headrace knows, in one transaction that others wait for.

The caller's transaction is the lock on SQLite (`BEGIN IMMEDIATE`); on PostgreSQL an advisory lock joins it, so replicas that
start together come up one after the other.
"""

from __future__ import annotations

from pathlib import Path

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from headrace.errors import StoreTooNew

VERSION_TABLE = "headrace_version"
_ADVISORY_LOCK = 0x6865616472616365  # "headrace"


def upgrade(connection: Connection) -> tuple[str | None, str]:
    """Migrate inside the connection's transaction; returns the revision before (None: an empty database) and after.

    Raises `StoreTooNew`, and has changed nothing then.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
    scripts = _scripts()
    before = check(connection, scripts)
    head = scripts.get_current_head()
    assert head is not None, "the package has no migrations"
    if before != head:
        environment = EnvironmentContext(Config(), scripts)
        environment.configure(
            connection=connection,
            fn=lambda revision, context: scripts._upgrade_revs(head, revision),  # what alembic's own command passes here
            version_table=VERSION_TABLE,
            transactional_ddl=True,
        )
        environment.run_migrations()
    return before, head


def check(connection: Connection, scripts: ScriptDirectory | None = None) -> str | None:
    """The database's revision; None for an empty one. Raises `StoreTooNew`."""
    scripts = scripts or _scripts()
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    current = context.get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in known:
        raise StoreTooNew(
            f"the database has schema {current}, and this Headrace knows them up to {scripts.get_current_head()}: "
            "upgrade Headrace, or give it another database (store.url)"
        )
    return current


def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))
