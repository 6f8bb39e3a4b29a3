"""Brings a database to the schema this Headrace knows, in one transaction that others wait for.

The caller's transaction is the lock on SQLite (`BEGIN IMMEDIATE`); on PostgreSQL an advisory lock joins it, so replicas that
start together come up one after the other. Alembic is imported only when there is something to migrate: it takes longer than
all the rest of opening a store.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from headrace.errors import StoreTooNew

VERSION_TABLE = "headrace_version"
_MIGRATIONS = Path(__file__).parent / "migrations"
_ADVISORY_LOCK = 0x6865616472616365  # "headrace"


def revisions() -> list[str]:
    """The schemas this Headrace knows, oldest first."""
    return sorted(path.name.partition("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def upgrade(connection: Connection) -> tuple[str | None, str]:
    """Migrate inside the connection's transaction; returns the revision before (None: an empty database) and after.

    Raises `StoreTooNew`, and has changed nothing then.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
    known = revisions()
    before = _current(connection)
    if before is not None and before not in known:
        raise StoreTooNew(
            f"the database has schema {before}, and this Headrace knows them up to {known[-1]}: "
            "upgrade Headrace, or give it another database (store.url)"
        )
    if before != known[-1]:
        _run(connection, known[-1])
    return before, known[-1]


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return revision


def _run(connection: Connection, head: str) -> None:
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(_MIGRATIONS))
    environment = EnvironmentContext(Config(), scripts)
    environment.configure(
        connection=connection,
        fn=lambda revision, context: scripts._upgrade_revs(head, revision),  # what alembic's own command passes here
        version_table=VERSION_TABLE,
        transactional_ddl=True,
    )
    environment.run_migrations()
