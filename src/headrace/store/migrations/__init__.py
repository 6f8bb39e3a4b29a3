"""The schema's history: one file in `versions/` for each change, applied in order by `headrace.store.migrate`.

Written by hand, with alembic's operations, for both databases. A released one is never changed. A test compares their
outcome with `schema.py`.
"""
