"""Payloads as JSON, and the reasons against."""

import dataclasses
import datetime
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Unstorable
from headrace.store.encoding import clean, encode

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner)
    ),
    max_leaves=20,
)


@given(json_values)
def test_every_json_value_is_stored_as_it_is(value: Any) -> None:
    """What JSON can hold comes back equal, keys in their order."""
    decoded = json.loads(encode(value, limit=10**6))
    assert decoded == value
    assert json.dumps(decoded) == json.dumps(value)


class Thing:
    """No JSON value."""


@dataclasses.dataclass
class Order:
    total: float


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"raw", "payload is of type bytes, which is no JSON value"),
        ({"a": [1, {"b c": b"raw"}]}, "payload.a[1]['b c'] is of type bytes, which is no JSON value"),
        ({"x": {"y": math.nan}}, "payload.x.y is nan, which JSON cannot hold"),
        ([math.inf], "payload[0] is inf, which JSON cannot hold"),
        ((None, -math.inf), "payload[1] is -inf, which JSON cannot hold"),
        ({"a": "b\0c"}, "payload.a has a NUL character, which a database cannot hold"),
        ({"a\0": 1}, "a key of payload has a NUL character, which a database cannot hold"),
        ({"a": {1: 2}}, "payload.a has a key of type int, and JSON keys are strings"),
        ({"a": Thing()}, "payload.a is of type Thing, which is no JSON value"),
        ({"a": {1, 2}}, "payload.a is of type set, which is no JSON value"),
        ([2**64], "payload[0] is an integer beyond 64 bits"),
        (["\ud800"], "payload[0] has a lone surrogate, which is no text"),
        ({"order": Order(math.nan)}, "payload.order.total is nan, which JSON cannot hold"),
        ("x" * 200, "payload has 202 bytes as JSON, and 100 are allowed"),
    ],
)
def test_x19_what_cannot_be_stored_is_refused_with_the_path_of_the_culprit(value: Any, reason: str) -> None:
    """X19: bytes, NaN, NUL, objects and what is too large are refused, and the reason says where they are."""
    with pytest.raises(Unstorable) as refusal:
        encode(value, limit=100)
    assert str(refusal.value) == reason


def test_x19_a_payload_that_contains_itself_is_refused() -> None:
    """X19: a cycle ends in a reason, not in a hang."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Unstorable, match="nested more than 254 levels deep"):
        encode(loop, limit=10**6)


def test_what_only_looks_like_a_nul_is_stored() -> None:
    """A backslash before `u0000` is a backslash; null is null."""
    for value in ("\\u0000", {"path": "C:\\u0000", "nothing": None}):
        assert json.loads(encode(value, limit=1000)) == value


def test_dates_and_dataclasses_become_json() -> None:
    """A trigger may fire its moment as it is."""
    moment = datetime.datetime(2030, 1, 2, 3, 4, tzinfo=datetime.UTC)
    assert encode({"at": moment, "order": Order(1.5)}, limit=1000) == '{"at":"2030-01-02T03:04:00+00:00","order":{"total":1.5}}'


@given(st.text(st.characters()), st.integers(2, 50), st.booleans())
def test_a_cleaned_text_can_be_stored(text: str, limit: int, keep_end: bool) -> None:
    """Error texts may hold anything, and what is kept of them fits."""
    cleaned = clean(text, limit, keep_end=keep_end)
    assert "\0" not in cleaned
    assert len(cleaned) <= limit
    cleaned.encode()


def test_a_long_text_keeps_the_end_that_matters() -> None:
    """A reason is cut at its end, a traceback at its beginning."""
    assert clean("abcdef", 4) == "abc…"
    assert clean("abcdef", 4, keep_end=True) == "…def"
