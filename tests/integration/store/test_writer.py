"""Units are stored whole, once, in groups, and what cannot be stored fails alone."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import text

from headrace.connector import Message
from headrace.errors import Unstorable
from headrace.store import DeadLetter, EventFilter, EventState, Store, Unit, Writer
from headrace.triggers.base import TriggerEvent

MakeUnit = Callable[..., Unit]
ReadPayloads = Callable[[Store], Awaitable[list[Any]]]


async def test_what_is_stored_has_its_identity_and_origin(store: Store, writing: Any, unit: MakeUnit) -> None:
    """An event can be traced to its message, and its order within the unit is kept."""
    await writing.store(unit("orders/0/7/1.5", {"n": 1}, [2, "ü"], lane="orders/0", published_at=1.5))
    (second, first) = [record.event for record in await store.events.find()]
    assert (first.identity, second.identity) == ("t:orders/0/7/1.5:0", "t:orders/0/7/1.5:1")
    assert (first.payload, second.payload) == ({"n": 1}, [2, "ü"])
    assert (first.stream, first.lane, first.published_at, first.generation) == ("orders", "orders/0", 1.5, 0)
    assert abs(first.stored_at - await store.now()) < 60
    assert len(writing.stored) == 1


async def test_units_that_come_together_are_one_group_in_their_order(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """A burst is stored in one transaction, and answered and numbered in the order it was submitted in."""
    units = [unit(f"{n % 7}/{n}", n, trigger_id=f"t{n % 3}") for n in range(200)]
    await writing.store(*units)
    assert [(report.units, report.new_units, report.new_events) for report in writing.groups] == [(200, 200, 200)]
    assert writing.stored == units
    assert await payloads(store) == list(range(200))


async def test_the_next_group_gathers_while_one_is_stored(store: Store, writing: Any, unit: MakeUnit) -> None:
    """No unit waits for a group to fill: the first goes alone, the rest with the next."""
    began = asyncio.Event()
    write = store.database.write

    async def write_and_tell(job: Any) -> Any:
        began.set()
        return await write(job)

    store.database.write = write_and_tell  # type: ignore[method-assign]
    writing.submit(unit("first", 0))
    await began.wait()
    await writing.store(*(unit(str(n), n) for n in range(50)))
    assert [report.units for report in writing.groups] == [1, 50]


async def test_a_group_is_bounded_in_rows(store: Store, write_to: Any, unit: MakeUnit) -> None:
    """No group has more rows than `max_group`, but for a unit that has more by itself."""
    writing = write_to(store, max_group=10)
    await writing.store(*(unit(str(n), n) for n in range(12)), unit("big", *range(30)))
    assert [(report.units, report.new_events) for report in writing.groups] == [(5, 5), (5, 5), (2, 2), (1, 30)]


async def test_x3_a_redelivery_changes_nothing_and_counts_as_stored(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """X3: a message that comes again is not derived again, whatever its filter yields this time."""
    await writing.store(unit("m", "first"))
    await writing.store(unit("m", "other", "more"), unit("n", "fresh"))
    assert len(writing.stored) == 3
    assert not writing.refused
    assert await payloads(store) == ["first", "fresh"]
    assert writing.groups[-1].new_units == 1


async def test_a_unit_twice_in_a_group_keeps_the_first(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """Two deliveries of one message within a group are one unit, and both are answered."""
    await writing.store(unit("m", 1), unit("n", 2), unit("m", 3, 4))
    assert len(writing.stored) == 3
    assert await payloads(store) == [1, 2]


async def test_two_triggers_derive_from_one_message_independently(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """Units are unique by trigger and message, not by message."""
    await writing.store(unit("m", 1, trigger_id="a"), unit("m", 2, trigger_id="b"))
    assert await payloads(store) == [1, 2]


async def test_a_taken_dedupe_key_drops_the_event_and_keeps_the_rest(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """A key is unique for its trigger: within a unit, within a group, and for ever after."""
    await writing.store(unit("m", TriggerEvent(1, "k"), TriggerEvent(2, "k"), 3), unit("n", TriggerEvent(4, "k"), 5))
    await writing.store(unit("o", TriggerEvent(6, "k"), 7), unit("p", TriggerEvent(8, "k"), trigger_id="other"))
    assert await payloads(store) == [1, 3, 5, 7, 8]
    assert len(writing.stored) == 4


async def test_x19_an_unstorable_unit_fails_alone(store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads) -> None:
    """X19: bytes, NaN, NUL, an object and 10 MB are refused with a reason each; their neighbours are stored."""
    culprits = [
        unit("bytes", 0, {"raw": b"x"}),
        unit("nan", {"deep": [math.nan]}),
        unit("nul", "a\0b"),
        unit("object", object()),
        unit("large", "x" * 10_000_000),
    ]
    units = [unit(f"good {n}", n) for n in range(6)]
    await writing.store(units[0], *(each for pair in zip(culprits, units[1:], strict=True) for each in pair))
    assert [refused for refused, _ in writing.refused] == culprits
    reasons = [str(error) for _, error in writing.refused]
    assert all(isinstance(error, Unstorable) for _, error in writing.refused)
    assert "payload 1.raw" in reasons[0]
    assert "payload.deep[0]" in reasons[1]
    assert "10000002 bytes" in reasons[4]
    assert writing.stored == units
    assert await payloads(store) == [0, 1, 2, 3, 4, 5]
    assert writing.available == []


async def test_x19_what_the_database_itself_refuses_is_found_by_halving(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """X19: when the database says no to a group, only the culprit fails, and the order of the rest is kept."""

    def forbid(connection: Any) -> None:
        if connection.dialect.name == "sqlite":
            connection.execute(
                text("""CREATE TRIGGER forbid BEFORE INSERT ON headrace_event WHEN new.payload = '"forbidden"'
                        BEGIN SELECT raise(ABORT, 'forbidden here'); END""")
            )
        else:
            connection.execute(text("""ALTER TABLE headrace_event ADD CHECK (payload <> '"forbidden"')"""))

    await store.database.write(forbid)
    culprits = [unit("c1", "forbidden"), unit("c2", 0, "forbidden")]
    units = [unit(f"good {n}", n) for n in range(10)]
    await writing.store(*units[:4], culprits[0], *units[4:9], culprits[1], units[9])
    assert [refused for refused, _ in writing.refused] == culprits
    assert isinstance(writing.refused[0][1], Unstorable)
    assert writing.stored == units
    assert await payloads(store) == list(range(10))
    assert writing.available == []


async def test_a_dead_letter_is_a_unit(store: Store, writing: Any, unit: MakeUnit) -> None:
    """A message given up is stored with its bytes, and its redelivery changes nothing, even if a filter now likes it."""
    message = Message(value=b"\0\xff", key=b"k", headers=(("h", None),), id="m", source="orders", timestamp=2.5)
    dead = DeadLetter("failed", "ValueError: no", "Traceback ...", attempts=5, message=message)
    await writing.store(unit("m", dead=dead))
    await writing.store(unit("m", "liked"), unit("m", dead=DeadLetter("rejected", "again")))
    assert len(writing.stored) == 3
    assert await store.events.find() == []
    (found,) = await store.dead_letters.find()
    shown = await store.dead_letters.show(found.id)
    assert shown is not None
    assert shown.message is not None
    assert (shown.cause, shown.reason, shown.traceback, shown.attempts) == ("failed", "ValueError: no", "Traceback ...", 5)
    assert (shown.message.value, shown.message.key, shown.message.headers) == (b"\0\xff", b"k", (("h", None),))
    assert (shown.message.source, shown.message.timestamp) == ("orders", 2.5)
    assert await store.dead_letters.counts() == {("t", "failed"): 1}


async def test_a_message_without_an_id_is_always_new(store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads) -> None:
    """Where a source gives no identity nothing is deduplicated, and identities still differ."""
    await writing.store(unit(None, 1), unit(None, 1))
    assert await payloads(store) == [1, 1]
    assert len({record.event.identity for record in await store.events.find()}) == 2


async def test_a_streamless_event_is_unique_by_its_key_else_by_token_and_index(
    store: Store, writing: Any, unit: MakeUnit, payloads: ReadPayloads
) -> None:
    """A moment fires once, whoever owns the trigger; without a key a new owner's events are new, and never swallowed."""
    for token in (1, 2):
        await writing.store(
            unit(None, TriggerEvent("noon", "2030-01-01T12:00"), lease_token=token),
            unit(None, f"{token}, 0", lease_token=token, first_index=0),
            unit(None, f"{token}, 1", lease_token=token, first_index=1),
            unit(None, f"{token}, 1 again", lease_token=token, first_index=1),
        )
    assert await payloads(store) == ["noon", "1, 0", "1, 1", "2, 0", "2, 1"]
    assert await store.events.show("t:~run:2.1:0") is not None


async def test_x18_filter_attempts_outlive_a_restart_and_end_with_the_unit(
    open_store: Callable[..., Awaitable[Store]], write_to: Any, unit: MakeUnit
) -> None:
    """X18: attempts are counted on where an earlier process stopped, until the message's unit is stored."""
    store = await open_store()
    assert [await store.attempts.bump("t", "m ü", "ValueError") for _ in range(2)] == [1, 2]
    await store.attempts.bump("t", "other", "ValueError")
    await store.aclose()

    store = await open_store()
    assert await store.attempts.bump("t", "m ü", "KeyError \0") == 3
    assert await store.attempts.bump("u", "m ü", "KeyError") == 1
    await write_to(store).store(unit("m ü", 1))
    assert await store.attempts.get("t", "m ü") == 0
    assert await store.attempts.get("u", "m ü") == 1
    assert await store.attempts.get("t", "other") == 1
    await store.attempts.clear("t", "other")
    assert await store.attempts.get("t", "other") == 0


async def test_a_refusal_is_told_later_and_flush_waits_for_it(writing: Any, unit: MakeUnit) -> None:
    """`submit` never calls back from within itself, and after `flush` everything is answered."""
    writing.submit(unit("m", b"raw"))
    assert writing.refused == []
    await writing.writer.flush()
    assert len(writing.refused) == 1
    assert writing.writer.pending_units == 0


async def test_what_waits_is_counted(store: Store, writing: Any, unit: MakeUnit) -> None:
    """The engine can bound what it submits by what is still unstored."""
    writing.submit(unit("m", "x" * 1000), unit("n", "x" * 1000))
    assert writing.writer.pending_units == 2
    assert 2000 < writing.writer.pending_bytes < 3000
    await writing.writer.flush()
    assert (writing.writer.pending_units, writing.writer.pending_bytes) == (0, 0)


async def test_an_error_of_a_callback_stops_nothing(store: Store, unit: MakeUnit, caplog: Any) -> None:
    """The writer outlives a defect of who listens to it, and the log has it."""
    answered: list[Unit] = []

    def on_stored(units: list[Unit]) -> None:
        answered.extend(units)
        raise ValueError("a listener's defect")

    writer = Writer(store, on_stored=on_stored, on_refused=lambda unit, error: None)
    for message_id in ("m", "n"):
        writer.submit(unit(message_id, 1))
        await writer.flush()
    assert len(answered) == 2
    assert "a listener's defect" in caplog.text
    await writer.aclose()


async def test_a_closed_writer_takes_nothing(store: Store, writing: Any, unit: MakeUnit) -> None:
    """What is not stored when the writer closes is dropped without an answer."""
    writing.submit(unit("m", 1))
    await writing.writer.aclose()
    assert len(writing.stored) == await count(store)
    try:
        writing.submit(unit("n", 1))
    except RuntimeError:
        pass
    else:
        raise AssertionError("a closed writer took a unit")
    await asyncio.wait_for(writing.writer.flush(), 1)


async def count(store: Store) -> int:
    return len(await store.events.find(EventFilter(states=[EventState.PENDING])))
