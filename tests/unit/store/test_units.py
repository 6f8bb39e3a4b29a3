"""Units as the documents of a group."""

import json

import pytest

from headrace.connector import Message
from headrace.errors import Unstorable
from headrace.store import DeadLetter, Unit
from headrace.store.sealing import Sealer
from headrace.store.units import EncodedUnit, encode_unit, group_of
from headrace.triggers.base import TriggerEvent


def encode(unit: Unit) -> EncodedUnit:
    return encode_unit(unit, Sealer(), 1000)


def test_the_first_of_two_units_with_one_key_is_kept() -> None:
    """A delivery that came twice within a group is stored as it came first."""
    units = [encode(Unit("t", "s", "m", [TriggerEvent(text)])) for text in ("first", "second")]
    group = group_of(units, ())
    assert group.units == [("t", "m", "s", None, None)]
    assert group.events == [("t", "m", 0, None, '"first"')]


def test_only_messages_with_filter_attempts_clear_them() -> None:
    """A group costs no statement for attempts that nobody made."""
    units = [encode(Unit("t", "s", message_id, [TriggerEvent(1)])) for message_id in ("a", "b")]
    assert group_of(units, ()).attempts == []
    assert group_of(units, {("t", "b"), ("u", "a")}).attempts == [("t", "b")]


def test_x19_the_culprit_among_several_events_is_named() -> None:
    """X19: of a unit of three, the second payload is at fault."""
    with pytest.raises(Unstorable, match=r"^payload 1\.at is of type bytes"):
        encode(Unit("t", "s", "m", [TriggerEvent(1), TriggerEvent({"at": b"x"}), TriggerEvent(3)]))


@pytest.mark.parametrize(
    "unit",
    [
        Unit("t\0", "s", "m", [TriggerEvent(1)]),
        Unit("t\ud800", "s", "m", [TriggerEvent(1)]),
        Unit("t", "s", "m", [TriggerEvent(1, dedupe_key=7)]),  # type: ignore[arg-type]
        Unit("t", "s", "m", [TriggerEvent(1)], published_at=object()),  # type: ignore[arg-type]
    ],
    ids=["NUL in the trigger", "surrogate in the trigger", "a key that is no string", "a time that is none"],
)
def test_x19_what_is_around_the_payload_is_looked_at_too(unit: Unit) -> None:
    """X19: a unit that no database would take is refused before its group is built."""
    with pytest.raises(Unstorable):
        encode(unit)


def test_a_dead_letter_can_always_be_stored() -> None:
    """Bytes, NULs, lone surrogates and endless tracebacks: what is given up is kept all the same."""
    message = Message(value=b"\0\xff", id="m\0", source="s\0", timestamp=1.0)
    dead = DeadLetter("failed", "it\0broke \ud800", traceback="x" * 10**6 + "ValueError: \0", attempts=5, message=message)
    encoded = encode(Unit("t", "s\0", "m\0", dead=dead, lane="\ud800"))
    row = encoded.dead_letter
    assert row is not None
    json.dumps(row)
    assert row["reason"] == "it\\0broke \\ud800"
    assert row["traceback"].endswith("ValueError: \\0")
    assert len(row["traceback"]) <= 64_000
    assert row["m"] == "m%00"


def test_the_payload_is_encoded_at_once() -> None:
    """What the filter does to its payload afterwards changes nothing."""
    payload = {"n": 1}
    encoded = encode(Unit("t", "s", "m", [TriggerEvent(payload)]))
    payload["n"] = 2
    assert encoded.events == [("t", "m", 0, None, '{"n":1}')]
