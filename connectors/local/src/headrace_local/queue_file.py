"""The broker itself: queues in one SQLite file, as blocking calls for one thread.

A message is written once to `message`; its way through the queue is a narrow row of `delivery`, so that handing a message
out never rewrites its value. `delivery.owner` says where it is:

- NULL: free. A free message is handed out in the order of ids, unless it has a lane (its key, in hex) of which somebody else
  owns a message: that is the whole rule of order, for two consumers and for a failed message alike.
- `NOBODY`: waiting for `due` after a failure. It owns its lane like a consumer would, so the lane waits with it.
- a consumer's id: in flight. `receipt` numbers the hand-out; a settlement that names another one changes nothing.

Leases are one row per consumer, so extending them costs the same at any number of messages in flight. Failures are counted
when a message comes back, not when it goes out: what is given back unharmed (behind a failed one, at a clean stop) counts none.

Only `publish` waits for the disk (`synchronous=FULL`). A power cut may undo the last hand-outs and settlements, never a
publication: the message comes again.

The `sqlite3` module lets go of the interpreter lock at each row it steps over and may wait 5 ms to get it back while another
thread computes. Hence every statement here works on a whole batch, and a batch is read as one row.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from headrace import Message, SourceMisconfigured, SourceUnavailable
from headrace_local.config import IN_MEMORY

APPLICATION_ID: Final = 0x48524C42  # "HRLB"
SCHEMA_VERSION: Final = 1
NOBODY: Final = 0
INSERT_ROWS: Final = 500
"""Rows of one INSERT: far from SQLite's limit of 32 766 parameters."""
BATCH_BYTES: Final = 16 * 2**20
"""Bytes of one claim, unless its first message alone has more."""
MESSAGE_BYTES: Final = 256 * 2**20
"""Bytes of one message: it is read as hexadecimal digits, of which SQLite takes 10^9."""

SCHEMA: Final = """
CREATE TABLE file (id TEXT NOT NULL);
CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never given twice
    queue TEXT NOT NULL,
    key BLOB,
    value BLOB,
    headers TEXT,                           -- JSON: [[name, hex or null], ...]
    published INTEGER NOT NULL              -- microseconds since the epoch
);
CREATE TABLE delivery (
    id INTEGER PRIMARY KEY REFERENCES message (id) ON DELETE CASCADE,
    queue TEXT NOT NULL,
    lane TEXT,                              -- hex(key); NULL: any order
    size INTEGER NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    owner INTEGER,
    receipt INTEGER,
    due REAL                                -- of NOBODY's, in seconds since the epoch
);
CREATE INDEX delivery_free ON delivery (queue, id) WHERE owner IS NULL;
CREATE INDEX delivery_taken ON delivery (owner, receipt) WHERE owner IS NOT NULL;
CREATE INDEX delivery_lane ON delivery (queue, lane, owner) WHERE owner IS NOT NULL AND lane IS NOT NULL;
CREATE INDEX delivery_due ON delivery (queue, due) WHERE owner = 0;
CREATE TABLE consumer (id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, until REAL NOT NULL);
CREATE TABLE dead_letter (
    id INTEGER PRIMARY KEY,                 -- the message's
    queue TEXT NOT NULL,
    key BLOB,
    value BLOB,
    headers TEXT,
    published INTEGER NOT NULL,
    deliveries INTEGER NOT NULL,
    reason TEXT NOT NULL,
    died REAL NOT NULL                      -- seconds since the epoch
);
CREATE INDEX dead_letter_queue ON dead_letter (queue, id);
"""

FREE_AGAIN: Final = "UPDATE delivery SET owner = NULL, due = NULL WHERE owner = 0 AND queue = :queue AND due <= :now"

# The free messages in order of age, at most :limit and :bytes of them (the first in any case). "Somebody else" is two
# comparisons, each one look into an index; `<>` would walk over everything this consumer has in flight in the lane.
CLAIM: Final = """
UPDATE delivery SET owner = :owner, receipt = :receipt WHERE id IN (
    SELECT id FROM (
        SELECT id, size, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total FROM (
            SELECT d.id, d.size FROM delivery d
            WHERE d.queue = :queue AND d.owner IS NULL AND d.id > :after
                AND CASE WHEN d.lane IS NULL THEN :unordered ELSE
                    d.lane NOT IN (SELECT value FROM json_each(:held))
                    AND NOT EXISTS (SELECT 1 FROM delivery o WHERE o.queue = d.queue AND o.lane = d.lane AND o.owner < :owner)
                    AND NOT EXISTS (SELECT 1 FROM delivery o WHERE o.queue = d.queue AND o.lane = d.lane AND o.owner > :owner)
                END
            ORDER BY d.id LIMIT :limit))
    WHERE total - size < :bytes)
AND EXISTS (SELECT 1 FROM consumer WHERE id = :owner)
"""

READ: Final = """
SELECT group_concat(id, ' '), group_concat(failures, ' '), group_concat(published, ' '), group_concat(coalesce(lane, '-'), ' '),
    group_concat(coalesce(value, '-'), ' '), group_concat(coalesce(headers, ''), char(10))
FROM (SELECT d.id, d.failures, m.published, d.lane, CASE WHEN m.value IS NULL THEN NULL ELSE hex(m.value) END AS value, m.headers
    FROM delivery d JOIN message m ON m.id = d.id WHERE d.owner = :owner AND d.receipt = :receipt ORDER BY d.id)
"""

# Settlements come as JSON, [[id, receipt, ...], ...]; what is not in flight under that receipt is not there.
HELD: Final = """
json_each(:items) item CROSS JOIN delivery d ON d.id = json_extract(item.value, '$[0]')
    AND d.owner = :owner AND d.receipt = json_extract(item.value, '$[1]')
"""
DELETE: Final = f"DELETE FROM message WHERE id IN (SELECT d.id FROM {HELD})"
BURY: Final = f"""
INSERT INTO dead_letter (id, queue, key, value, headers, published, deliveries, reason, died)
SELECT m.id, m.queue, m.key, m.value, m.headers, m.published, d.failures + 1, json_extract(item.value, '$[2]'), :now
FROM {HELD} JOIN message m ON m.id = d.id
"""
FREE_LANE: Final = f"""
UPDATE delivery SET owner = NULL, receipt = NULL WHERE queue = :queue AND owner = :owner
    AND lane IN (SELECT d.lane FROM {HELD}) AND id NOT IN (SELECT d.id FROM {HELD})
"""
POSTPONE: Final = f"""
UPDATE delivery SET owner = 0, receipt = NULL, failures = failures + 1, due = late.due
FROM (SELECT d.id, json_extract(item.value, '$[2]') AS due FROM {HELD}) late WHERE delivery.id = late.id
"""


class Receipt(NamedTuple):
    """What settles a message: the hand-out it belongs to. The broker payload of an event."""

    id: int
    receipt: int
    key: bytes | None
    deliveries: int


class Claim(NamedTuple):
    """What a claim brought: the events, and when the next postponed message of the queue is due (epoch seconds)."""

    events: list[tuple[Message, Receipt]]
    next_due: float | None


class DeadLetter(NamedTuple):
    message: Message
    deliveries: int
    reason: str
    died: float


@dataclass(slots=True)
class Settlement:
    """What became of events in flight; applied in one transaction."""

    done: list[tuple[int, int]] = field(default_factory=list)
    """(id, receipt) of messages to delete."""
    dead: list[tuple[int, int, str]] = field(default_factory=list)
    """(id, receipt, reason) of messages for the dead-letter table."""
    late: list[tuple[int, int, float]] = field(default_factory=list)
    """(id, receipt, due) of messages to hand out again at an epoch second; what is in flight behind one in its lane is freed."""

    def add(self, other: Settlement) -> None:
        self.done += other.done
        self.dead += other.dead
        self.late += other.late


class QueueFile:
    """An open file. Raises `SourceUnavailable` where another try may help (locked, full disk), else `SourceMisconfigured`."""

    lock_seconds: ClassVar[float] = 3.0
    """How long to wait for another process that writes, before `SourceUnavailable`."""

    def __init__(self, path: str) -> None:
        self.path = path
        with self._errors():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=self.lock_seconds)
        try:
            with self._errors():
                self._prepare()
                (self.id,) = self._db.execute("SELECT id FROM file").fetchone()
            self._inode = None if path == IN_MEMORY else os.stat(path).st_ino
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    # --- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, queue: str, messages: Sequence[Message]) -> None:
        """Append messages, all or none; they are on disk when this returns. Raises `ValueError` for one that is too large."""
        for message in messages:
            if message.byte_size > MESSAGE_BYTES:
                raise ValueError(f"a message of {message.byte_size} bytes: at most {MESSAGE_BYTES} are taken")
        self._check_in_place()
        with self._errors():
            self._db.execute("PRAGMA synchronous = FULL")
            try:
                with self._transaction():
                    self._insert(queue, messages)
            finally:
                self._db.execute("PRAGMA synchronous = NORMAL")

    def _insert(self, queue: str, messages: Sequence[Message]) -> None:
        found = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'message'").fetchone()
        last = found[0] if found else 0
        now = time.time_ns() // 1000
        for start in range(0, len(messages), INSERT_ROWS):
            rows = messages[start : start + INSERT_ROWS]
            values: list[Any] = []
            for number, message in enumerate(rows, last + 1 + start):
                values += (number, queue, message.key, message.value, _dump_headers(message.headers), now)
            self._db.execute(f"INSERT INTO message VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * len(rows))}", values)
        self._db.execute(
            """INSERT INTO delivery (id, queue, lane, size)
            SELECT id, queue, CASE WHEN key IS NULL THEN NULL ELSE hex(key) END,
                coalesce(length(key), 0) + coalesce(length(value), 0) + coalesce(length(headers), 0)
            FROM message WHERE id > ?""",
            (last,),
        )

    # --- consuming ----------------------------------------------------------------------------------------------------

    def register(self, queue: str, lease: float) -> int:
        """Make a consumer with a lease of that many seconds and return its id. What dead consumers held is freed."""
        with self._errors(), self._transaction():
            self._reap()
            made = self._db.execute("INSERT INTO consumer (queue, until) VALUES (?, ?)", (queue, time.time() + lease))
            assert made.lastrowid is not None
            return made.lastrowid

    def renew(self, owner: int, lease: float) -> bool:
        """Extend a consumer's lease; False when it ran out and somebody took what it held."""
        with self._errors(), self._transaction():
            alive = self._db.execute("UPDATE consumer SET until = ? WHERE id = ?", (time.time() + lease, owner)).rowcount > 0
            self._reap()
            return alive

    def release(self, owner: int) -> None:
        """End a consumer: what it has in flight is free at once, and counts no failure."""
        with self._errors(), self._transaction():
            self._db.execute("UPDATE delivery SET owner = NULL, receipt = NULL WHERE owner = ?", (owner,))
            self._db.execute("DELETE FROM consumer WHERE id = ?", (owner,))

    def _reap(self) -> None:
        dead = "(SELECT id FROM consumer WHERE until <= :now)"
        now = {"now": time.time()}
        self._db.execute(f"UPDATE delivery SET owner = NULL, receipt = NULL, failures = failures + 1 WHERE owner IN {dead}", now)
        self._db.execute(f"DELETE FROM consumer WHERE id IN {dead}", now)

    def version(self) -> int:
        """A number that another one replaces when another process changed the file. Cheap. Raises when the file was replaced."""
        self._check_in_place()
        with self._errors():
            (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def claim(
        self, queue: str, owner: int, receipt: int, *, after: int, limit: int, held: Sequence[str], unordered: bool
    ) -> Claim:
        """Hand the next free messages with an id beyond `after` to a consumer.

        `held`: lanes (in hex) to leave out. `unordered`: whether to take messages without a key.
        """
        names = {
            "queue": queue, "owner": owner, "receipt": receipt, "after": after, "limit": limit, "unordered": unordered,
            "held": orjson.dumps(held).decode(), "bytes": BATCH_BYTES, "now": time.time(),
        }  # fmt: skip
        with self._errors():
            (next_due,) = self._db.execute("SELECT min(due) FROM delivery WHERE owner = 0 AND queue = ?", (queue,)).fetchone()
            if next_due is not None and next_due <= names["now"]:
                self._db.execute(FREE_AGAIN, names)
                names["after"] = 0
            if not self._db.execute(CLAIM, names).rowcount:
                return Claim([], next_due)
            columns = self._db.execute(READ, names).fetchone()
        ids, failures, published, lanes, values = (column.split(" ") for column in columns[:5])
        events = []
        for id_, failed, at, lane, value, headers in zip(
            ids, failures, published, lanes, values, columns[5].split("\n"), strict=True
        ):
            key = None if lane == "-" else bytes.fromhex(lane)
            message = Message(
                value=None if value == "-" else bytes.fromhex(value),
                key=key,
                headers=_load_headers(headers),
                # The moment is in the id for the case that a backup is put back: then ids start again from where it ends.
                id=f"{self.id}-{id_}-{at}",
                source=queue,
                timestamp=int(at) / 1e6,
                delivery_count=int(failed) + 1,
            )
            events.append((message, Receipt(int(id_), receipt, key, int(failed) + 1)))
        return Claim(events, next_due)

    def give_back(self, owner: int, receipt: int, lanes: Sequence[str], unordered: bool) -> None:
        """Free what a claim took from these lanes (in hex), uncounted; `unordered`: also what has no key."""
        with self._errors():
            self._db.execute(
                """UPDATE delivery SET owner = NULL, receipt = NULL WHERE owner = ? AND receipt = ?
                AND CASE WHEN lane IS NULL THEN ? ELSE lane IN (SELECT value FROM json_each(?)) END""",
                (owner, receipt, unordered, orjson.dumps(lanes).decode()),
            )

    def settle(self, queue: str, owner: int, settlement: Settlement) -> None:
        """Apply a settlement, all or nothing. Applying it again changes nothing."""
        names: dict[str, Any] = {"queue": queue, "owner": owner, "now": time.time()}
        with self._errors(), self._transaction():
            if settlement.dead:
                names["items"] = orjson.dumps(settlement.dead).decode()
                self._db.execute(BURY, names)
                self._db.execute(DELETE, names)
            if settlement.done:
                names["items"] = orjson.dumps(settlement.done).decode()
                self._db.execute(DELETE, names)
            if settlement.late:
                names["items"] = orjson.dumps(settlement.late).decode()
                self._db.execute(FREE_LANE, names)
                self._db.execute(POSTPONE, names)

    # --- looking ------------------------------------------------------------------------------------------------------

    def stats(self, queue: str) -> dict[str, float]:
        """Messages `ready`, `delayed` (after a failure), `in_flight` and `dead`, `consumers`, and `oldest_age_seconds`."""
        with self._errors():
            ready, delayed, in_flight, oldest = self._db.execute(
                """SELECT count(*) FILTER (WHERE owner IS NULL), count(*) FILTER (WHERE owner = 0),
                    count(*) FILTER (WHERE owner > 0), min(id) FROM delivery WHERE queue = ?""",
                (queue,),
            ).fetchone()
            published = self._db.execute("SELECT published FROM message WHERE id = ?", (oldest,)).fetchone()
            (dead,) = self._db.execute("SELECT count(*) FROM dead_letter WHERE queue = ?", (queue,)).fetchone()
            (consumers,) = self._db.execute("SELECT count(*) FROM consumer WHERE queue = ?", (queue,)).fetchone()
        age = max(0.0, time.time() - published[0] / 1e6) if published else 0.0
        return {
            "ready": ready, "delayed": delayed, "in_flight": in_flight, "dead": dead,
            "consumers": consumers, "oldest_age_seconds": age,
        }  # fmt: skip

    def waiting(self, queue: str) -> list[Message]:
        """Every message that is not settled, oldest first, wherever it is. For tests and tools: reads all of them."""
        with self._errors():
            rows = self._db.execute(
                """SELECT m.id, m.published, m.key, m.value, m.headers, d.failures FROM message m
                JOIN delivery d ON d.id = m.id WHERE m.queue = ? ORDER BY m.id""",
                (queue,),
            ).fetchall()
        return [self._message(queue, *row) for row in rows]

    def dead_letters(self, queue: str) -> list[DeadLetter]:
        """The dead letters, oldest first."""
        with self._errors():
            rows = self._db.execute(
                """SELECT id, published, key, value, headers, deliveries, reason, died FROM dead_letter
                WHERE queue = ? ORDER BY id""",
                (queue,),
            ).fetchall()
        return [
            DeadLetter(self._message(queue, *stored, deliveries - 1), deliveries, reason, died)
            for *stored, deliveries, reason, died in rows
        ]

    def redrive(self, queue: str) -> int:
        """Publish the dead letters again, as new messages, and return how many."""
        letters = self.dead_letters(queue)
        with self._errors(), self._transaction():
            if letters:
                self._insert(queue, [letter.message for letter in letters])
                self._db.execute("DELETE FROM dead_letter WHERE queue = ?", (queue,))
        return len(letters)

    def _message(self, queue: str, *stored: Any) -> Message:
        id_, published, key, value, headers, failures = stored
        return Message(
            value=value,
            key=key,
            headers=_load_headers(headers or ""),
            id=f"{self.id}-{id_}-{published}",
            source=queue,
            timestamp=published / 1e6,
            delivery_count=failures + 1,
        )

    # --- the file -----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        # in this order: whoever makes the file now commits both at once, so the mark is there if the tables are
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        if tables and application != APPLICATION_ID:
            raise SourceMisconfigured(f"{self.path} is another program's database: give the broker a file of its own")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._enter_wal()
        with self._transaction():
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise SourceMisconfigured(f"{self.path} was written by a newer headrace-local: upgrade, or use another file")
            if version == 0:
                for statement in SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute("INSERT INTO file VALUES (?)", (uuid.uuid4().hex[:16],))
                self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _enter_wal(self) -> None:
        # Two processes that make the file at once: SQLite tells one "locked" here without waiting.
        deadline = time.monotonic() + self.lock_seconds
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check_in_place(self) -> None:
        """Notice that the file was deleted or replaced: what is written to this one would be lost."""
        if self._inode is None:
            return
        try:
            in_place = os.stat(self.path).st_ino == self._inode
        except FileNotFoundError:
            in_place = False
        if not in_place:
            raise SourceUnavailable(f"{self.path} was deleted or replaced while it was open; it is opened anew")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite rolls back by itself on a full disk
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            problem = f"{self.path}: {error}"
            match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
                case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                    raise SourceUnavailable(f"{problem} (another process holds it)") from error
                case sqlite3.SQLITE_FULL:
                    raise SourceUnavailable(f"{problem} (free some space)") from error
                case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM | sqlite3.SQLITE_INTERRUPT:
                    raise SourceUnavailable(problem) from error
                case sqlite3.SQLITE_CANTOPEN:
                    raise SourceMisconfigured(f"{problem} (its directory must exist and be writable)") from error
                case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
                    raise SourceMisconfigured(f"{problem} (the file and its directory must be writable)") from error
                case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                    raise SourceMisconfigured(f"{problem} (not a queue file, or damaged)") from error
            raise


def _dump_headers(headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    if not headers:
        return None
    return orjson.dumps([(name, None if value is None else value.hex()) for name, value in headers]).decode()


def _load_headers(text: str) -> tuple[tuple[str, bytes | None], ...]:
    if not text:
        return ()
    return tuple((name, None if value is None else bytes.fromhex(value)) for name, value in orjson.loads(text))
