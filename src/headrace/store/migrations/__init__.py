"""The schema's history: one file in `versions/` for each change, applied in order by `headrace.store.migrate`.

A file is called `NNNN_what.py`, and NNNN is its revision, one more than the one before. Written by hand, with alembic's
operations, for both databases. A released one is never changed. A test compares their outcome with `schema.py`.
"""
