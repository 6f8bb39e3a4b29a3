"""The hot statements, which each database is given in its own way. Everything else is written once, with SQLAlchemy.

Many rows go in as a few parameters, JSON or arrays: the statements' texts never change, no limit on parameters is met, and no
row costs a trip between Python and the driver.
"""

from headrace.store.sql.base import EventRow, Group, HotSql, Mark, Stored, UnitRow, Words

__all__ = ["EventRow", "Group", "HotSql", "Mark", "Stored", "UnitRow", "Words"]
