"""Two databases behind one interface: a job is a function of a SQLAlchemy connection, and runs in one transaction.

All SQL is therefore written as plain synchronous functions; only this package knows that SQLite wants a thread and
PostgreSQL an event loop. The few statements that each database needs its own way are in `headrace.store.sql`.
"""

from headrace.store.database.base import Database, open_database

__all__ = ["Database", "open_database"]
