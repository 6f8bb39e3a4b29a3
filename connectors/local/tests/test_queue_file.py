"""The broker in a file: what SQLite's errors become, what is durable, and what two connections see of each other."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from headrace_local import QueueFile
from headrace_local.queue_file import SCHEMA_VERSION, Claim, Settlement

from headrace import SourceMisconfigured, SourceUnavailable
from headrace.testing.conformance import message, messages

Q = "orders"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "queue.db")


@pytest.fixture
def file(path: str) -> Iterator[QueueFile]:
    with closing(QueueFile(path)) as opened:
        yield opened


def claim(
    file: QueueFile, owner: int, receipt: int = 1, *, after: int = 0, limit: int = 100, held: list[str] | None = None
) -> Claim:
    return file.claim(Q, owner, receipt, after=after, limit=limit, held=held or [], unordered=True)


def values(claimed: Claim) -> list[bytes | None]:
    return [event[0].value for event in claimed.events]


def done(claimed: Claim) -> Settlement:
    return Settlement(done=[(receipt.id, receipt.receipt) for _, receipt in claimed.events])


def test_published_messages_are_there_after_a_reopening(path: str) -> None:
    """What `publish` returned from is in the file, whole: value, key, headers, and the same id."""
    sent = message(b"\x00\xff", b"", (("h", None), ("h", b"\xfe")))
    with closing(QueueFile(path)) as first:
        first.publish(Q, [sent, message(None, None)])
        before = first.waiting(Q)
    with closing(QueueFile(path)) as second:
        after = second.waiting(Q)
    assert [(m.id, m.value, m.key, m.headers) for m in after] == [(m.id, m.value, m.key, m.headers) for m in before]
    assert (after[0].value, after[0].key, after[0].headers) == (sent.value, sent.key, sent.headers)
    assert (after[1].value, after[1].key) == (None, None)


def test_publications_wait_for_the_disk(file: QueueFile) -> None:
    """The database is in WAL mode, and `publish` commits with synchronous=FULL (2); what follows does not wait (1)."""
    seen: list[int] = []
    database = sqlite3.connect(file.path)  # only to read the mode of the file
    with closing(database):
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    class Watched(QueueFile):
        def _insert(self, queue: str, given: object) -> None:
            seen.append(self._db.execute("PRAGMA synchronous").fetchone()[0])
            super()._insert(queue, given)  # type: ignore[arg-type]

    with closing(Watched(file.path)) as watched:
        watched.publish(Q, messages(1))
        seen.append(watched._db.execute("PRAGMA synchronous").fetchone()[0])
    assert seen == [2, 1]


def test_ids_are_never_given_twice(path: str) -> None:
    """Not after everything was deleted, and not in a file that was deleted and made again."""
    ids: list[str] = []
    for _ in range(2):
        with closing(QueueFile(path)) as file:
            for _ in range(2):
                file.publish(Q, messages(1))
                owner = file.register(Q, 10)
                claimed = claim(file, owner)
                ids += [event[0].id for event in claimed.events]
                file.settle(Q, owner, done(claimed))
                file.release(owner)
        for leftover in Path(path).parent.glob("queue.db*"):
            leftover.unlink()
    assert len(set(ids)) == 4


def test_queues_in_one_file_are_apart(file: QueueFile) -> None:
    """Messages, consumers and dead letters belong to their queue."""
    file.publish(Q, messages(1))
    file.publish("other", messages(2))
    owner = file.register(Q, 10)
    assert values(claim(file, owner)) == [b"m0"]
    assert (file.stats(Q)["in_flight"], file.stats("other")["ready"], file.stats("other")["consumers"]) == (1, 2, 0)


def test_a_lane_is_with_one_consumer_until_everything_of_it_is_settled(file: QueueFile) -> None:
    """Another consumer gets no message of a lane, old or new, while one is in flight; of other lanes and of none it does."""
    file.publish(Q, [message(b"a1", b"a"), message(b"b1", b"b")])
    one, two = file.register(Q, 10), file.register(Q, 10)
    first = claim(file, one, limit=1)
    assert values(first) == [b"a1"]
    file.publish(Q, [message(b"a2", b"a"), message(b"n", None)])
    assert values(claim(file, two)) == [b"b1", b"n"]
    assert values(claim(file, one, 2)) == [b"a2"], "its owner goes on with the lane"
    file.settle(Q, one, done(first))
    file.publish(Q, [message(b"a3", b"a")])
    assert values(claim(file, two, 2)) == [], "a2 is still in flight"
    file.release(one)
    assert values(claim(file, two, 3)) == [b"a2", b"a3"]


def test_a_hot_lane_does_not_starve_the_others(file: QueueFile) -> None:
    """Messages are handed out by age, so a lane with a large backlog gets its turn and no more."""
    for number in range(5):
        file.publish(Q, [*messages(50, key=b"hot", start=number * 50), message(b"cold", f"cold {number}".encode())])
    owner = file.register(Q, 10)
    got = claim(file, owner, limit=102)
    assert [event[0].key for event in got.events].count(b"hot") == 100


def test_what_a_dead_consumer_held_is_free_when_its_lease_ends(file: QueueFile) -> None:
    """A lease that is not renewed ends; whoever comes next frees what it held, counted as a delivery."""
    file.publish(Q, messages(2))
    dead, living = file.register(Q, 0.05), file.register(Q, 10)
    assert values(claim(file, dead)) == [b"m0", b"m1"]
    assert values(claim(file, living)) == []
    deadline = time.monotonic() + 5
    while not (got := claim(file, living)).events and time.monotonic() < deadline:
        assert file.renew(living, 10)
    assert [(event[0].value, event[0].delivery_count) for event in got.events] == [(b"m0", 2), (b"m1", 2)]
    assert not file.renew(dead, 10), "it is told that it lost its lease"
    assert values(claim(file, dead, 2)) == [], "and gets nothing more"


def test_a_stale_receipt_changes_nothing(file: QueueFile) -> None:
    """S1: what was handed out again since is not deleted, not postponed, not buried."""
    file.publish(Q, messages(1))
    one, two = file.register(Q, 10), file.register(Q, 10)
    stale = claim(file, one)
    ((_, receipt),) = stale.events
    file.release(one)
    fresh = claim(file, two)
    file.settle(Q, one, done(stale))
    file.settle(Q, one, Settlement(late=[(receipt.id, receipt.receipt, 0.0)], dead=[(receipt.id, receipt.receipt, "no")]))
    assert file.stats(Q)["in_flight"] == 1
    assert file.dead_letters(Q) == []
    file.settle(Q, two, done(fresh))
    assert file.waiting(Q) == []


def test_a_settlement_is_whole_or_not_at_all(file: QueueFile, path: str) -> None:
    """A settlement that cannot be completed changes nothing and can be made again."""
    file.publish(Q, messages(3, key=None))
    owner = file.register(Q, 10)
    receipts = [event[1] for event in claim(file, owner).events]
    settlement = Settlement(
        done=[(receipts[0].id, 1)], dead=[(receipts[1].id, 1, "bad")], late=[(receipts[2].id, 1, time.time() + 60)]
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TRIGGER refuse BEFORE UPDATE ON delivery BEGIN SELECT RAISE(ABORT, 'not now'); END")
        with pytest.raises(sqlite3.IntegrityError, match="not now"):
            file.settle(Q, owner, settlement)
        assert file.stats(Q)["in_flight"] == 3
        assert file.dead_letters(Q) == []
        other.execute("DROP TRIGGER refuse")
    file.settle(Q, owner, settlement)
    stats = file.stats(Q)
    assert (stats["in_flight"], stats["delayed"], stats["dead"]) == (0, 1, 1)


def test_a_claim_is_bounded_in_bytes(file: QueueFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends before its bytes pass the bound; one message always comes."""
    monkeypatch.setattr("headrace_local.queue_file.BATCH_BYTES", 1000)
    file.publish(Q, [message(b"x" * size) for size in (5000, 400, 400, 400)])
    owner = file.register(Q, 10)
    sizes = [[len(event[0].value or b"") for event in claim(file, owner, receipt).events] for receipt in range(1, 5)]
    assert sizes == [[5000], [400, 400, 400], [], []]


def test_a_large_message_arrives_whole(file: QueueFile) -> None:
    """10 MB of bytes."""
    large = bytes(range(256)) * 40_000
    file.publish(Q, [message(large)])
    ((got, _),) = claim(file, file.register(Q, 10)).events
    assert got.value == large


def test_dead_letters_keep_everything_and_can_be_redriven(file: QueueFile) -> None:
    """A dead letter has the bytes, the reason, the deliveries and its moment; `redrive` publishes it as a new message."""
    file.publish(Q, [message(b"bad", b"k", (("h", b"1"),))])
    owner = file.register(Q, 10)
    ((original, receipt),) = claim(file, owner).events
    file.settle(Q, owner, Settlement(dead=[(receipt.id, receipt.receipt, "audit: no amount")]))
    (letter,) = file.dead_letters(Q)
    assert (letter.message.value, letter.message.key, letter.message.headers) == (b"bad", b"k", (("h", b"1"),))
    assert (letter.message.id, letter.reason, letter.deliveries) == (original.id, "audit: no amount", 1)
    assert abs(letter.died - time.time()) < 60
    assert file.redrive(Q) == 1
    assert file.dead_letters(Q) == []
    (again,) = file.waiting(Q)
    assert (again.value, again.key, again.headers) == (b"bad", b"k", (("h", b"1"),))
    assert again.id != original.id
    assert file.redrive(Q) == 0


def test_stats_tell_what_waits(file: QueueFile) -> None:
    """Ready, delayed, in flight, dead, consumers, and the age of the oldest message in seconds."""
    assert file.stats(Q) == dict.fromkeys(("ready", "delayed", "in_flight", "dead", "consumers", "oldest_age_seconds"), 0)
    file.publish(Q, messages(4, key=None))
    owner = file.register(Q, 10)
    one, two = (event[1] for event in claim(file, owner, limit=2).events)
    file.settle(Q, owner, Settlement(late=[(one.id, 1, time.time() + 60)]))
    stats = file.stats(Q)
    age = stats.pop("oldest_age_seconds")
    assert stats == {"ready": 2, "delayed": 1, "in_flight": 1, "dead": 0, "consumers": 1}
    assert 0 <= age < 60
    file.settle(Q, owner, Settlement(dead=[(two.id, 1, "bad")]))
    assert file.stats(Q)["dead"] == 1


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_locked_file_is_unavailable(file: QueueFile, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that writes for too long: try again. Nothing was published."""
    monkeypatch.setattr(QueueFile, "lock_seconds", 0.05)
    with closing(QueueFile(path)) as impatient, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SourceUnavailable, match="another process holds it"):
            impatient.publish(Q, messages(1))
        other.execute("ROLLBACK")
        assert impatient.waiting(Q) == []
        impatient.publish(Q, messages(1))
        assert len(impatient.waiting(Q)) == 1


def test_a_full_disk_is_unavailable(path: str) -> None:
    """No room: try again. Nothing of the batch was published, and what is there can still be consumed."""

    class Cramped(QueueFile):
        def limit(self, pages: int) -> None:
            self._db.execute(f"PRAGMA max_page_count = {pages}")

    with closing(Cramped(path)) as file:
        file.publish(Q, messages(1))
        file.limit(40)
        with pytest.raises(SourceUnavailable, match="free some space"):
            file.publish(Q, [message(b"x" * 50_000) for _ in range(20)])
        owner = file.register(Q, 10)
        claimed = claim(file, owner)
        assert values(claimed) == [b"m0"]
        file.settle(Q, owner, done(claimed))
        file.limit(100_000)
        file.publish(Q, [message(b"x" * 50_000)])


def test_a_missing_directory_is_a_misconfiguration(tmp_path: Path) -> None:
    with pytest.raises(SourceMisconfigured, match="directory must exist"):
        QueueFile(str(tmp_path / "nowhere" / "queue.db"))


def test_a_file_that_is_no_database_is_a_misconfiguration(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is not a database, and it is longer than a page header of one hundred bytes would be, on purpose")
    with pytest.raises(SourceMisconfigured, match="not a queue file"):
        QueueFile(str(path))
    assert path.read_text().startswith("this is not"), "it is left as it was"


def test_another_programs_database_is_a_misconfiguration(path: str) -> None:
    """No tables are made in a database that has others."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE event (id)")
    with pytest.raises(SourceMisconfigured, match="another program's"):
        QueueFile(path)


def test_a_newer_file_is_a_misconfiguration(path: str) -> None:
    QueueFile(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as newer:
        newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(SourceMisconfigured, match="newer headrace-local"):
        QueueFile(path)


@pytest.mark.parametrize("replace", [True, False], ids=["replaced", "deleted"])
def test_a_file_that_was_replaced_is_noticed(path: str, tmp_path: Path, replace: bool) -> None:
    """Nothing is published to a file that is not there any more, and its consumers open the new one."""
    with closing(QueueFile(path)) as file:
        for leftover in tmp_path.glob("queue.db*"):
            leftover.unlink()
        if replace:
            QueueFile(path).close()
        with pytest.raises(SourceUnavailable, match="replaced"):
            file.publish(Q, messages(1))
        with pytest.raises(SourceUnavailable, match="replaced"):
            file.version()


def test_many_may_make_the_file_at_once(path: str) -> None:
    """Whoever comes first makes the schema, the others wait for it."""
    ids: list[str] = []
    errors: list[Exception] = []
    start = threading.Barrier(6)

    def open_and_publish(number: int) -> None:
        start.wait()
        try:
            with closing(QueueFile(path)) as file:
                ids.append(file.id)
                file.publish(Q, [message(f"{number}".encode())])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_and_publish, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(set(ids)) == 1
    with closing(QueueFile(path)) as file:
        assert sorted(m.value or b"" for m in file.waiting(Q)) == [f"{n}".encode() for n in range(6)]


def test_claims_look_into_indexes_only(file: QueueFile) -> None:
    """A lane with a large backlog behind a failed message costs the others nothing: no claim walks over it again."""
    file.publish(Q, messages(3000, key=b"stuck"))
    owner = file.register(Q, 100)
    first = claim(file, owner, limit=1)
    file.settle(Q, owner, Settlement(late=[(first.events[0][1].id, 1, time.time() + 1000)]))
    file.publish(Q, messages(1, key=b"free"))
    assert values(claim(file, owner, 2, after=3000)) == [b"m0"]
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    class Counted(QueueFile):
        def watch(self) -> None:
            self._db.set_progress_handler(count, 100)

    with closing(Counted(file.path)) as counted:
        counted.watch()
        claim(counted, owner, 3, after=3001)
    assert steps < 10, f"{steps * 100} steps of SQLite's machine to find nothing"
