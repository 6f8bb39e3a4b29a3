"""The pure parts around a filter's stream: sizes, suspects, names, delays."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.connector import Message
from headrace.runner.backoff import Backoff, jittered
from headrace.runner.delivery import MAX_COUNTED, estimate_size
from headrace.runner.place import SUSPECT_SECONDS, SUSPECTS_KEPT, Suspects
from headrace.runner.submitter import as_message, lane_name
from headrace.streams.contract import UNORDERED


def test_x9_a_payloads_size_is_estimated_at_a_bounded_cost() -> None:
    """X9: what waits for the store is bounded in bytes: a payload counts about what it holds, however deep it is."""
    assert 1000 <= estimate_size("x" * 1000) <= 1100
    assert 1000 <= estimate_size({"a": ["x" * 500, "y" * 500]}) <= 1500
    assert estimate_size(None) > 0
    many = estimate_size(["x" * 100] * (10 * MAX_COUNTED))
    assert 100 * 10 * MAX_COUNTED <= many <= 300 * 10 * MAX_COUNTED


def test_suspects_are_bounded_in_number_and_time() -> None:
    """What a trigger failed on is remembered for a while, and only so much of it."""
    now = [0.0]
    suspects = Suspects(lambda: now[0])
    assert not suspects
    suspects.note("a", 1, "first")
    suspects.note("a", 2, "second")
    assert suspects
    assert suspects.get("a") == (2, "second", 0.0)
    suspects.clear("a")
    assert not suspects
    for n in range(SUSPECTS_KEPT + 10):
        suspects.note(str(n), 1, "")
    assert suspects.get("9") is None
    assert suspects.get("10") is not None
    now[0] = SUSPECT_SECONDS + 1
    assert not suspects
    assert suspects.get("10") is None


def test_a_backoff_grows_is_jittered_and_calms_down() -> None:
    """Each delay is between half and all of its step; after a calm while it is the first again."""
    now = [0.0]
    backoff = Backoff(1.0, 8.0, calm=60.0, clock=lambda: now[0])
    for step in (1, 2, 4, 8, 8):
        delay = backoff.next()
        assert step / 2 <= delay <= step
        now[0] += delay
    now[0] += 61
    assert backoff.next() <= 1
    assert len({jittered(1.0, 8.0, 2) for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("lane", "name"),
    [(None, None), (UNORDERED, None), (("orders", 3), "orders/3"), (b"k", "k"), (b"\xff", "b'\\xff'"), ("s", "s"), (7, "7")],
)
def test_lanes_have_names_that_people_read(lane: Any, name: str | None) -> None:
    """A partition is `topic/number`, a key its text, and what has no order has no name."""
    assert lane_name(lane) == name


@pytest.mark.parametrize(("raw", "value"), [(b"b", b"b"), ("ü", "ü".encode()), ({"n": 1}, b'{"n":1}'), (bytearray(b"c"), b"c")])
def test_a_dead_letter_keeps_the_bytes_of_any_raw_event(raw: Any, value: bytes) -> None:
    """Bytes as they are, text encoded, data as JSON."""
    message = as_message(raw, "id", "orders")
    assert message is not None
    assert (message.value, message.id, message.source) == (value, "id", "orders")


def test_a_message_is_kept_as_it_is_and_an_object_not_at_all() -> None:
    """A connector's message has all a dead letter needs; an object without bytes has none."""
    message = Message(value=b"v", id="1", source="s", timestamp=1.0)
    assert as_message(message, None, None) is message
    assert as_message(object(), "1", "s") is None
