"""Keyword arguments of triggers as JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.triggers import decode_kwargs, encode_kwargs

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=8),
    st.datetimes(timezones=st.sampled_from([None, UTC, ZoneInfo("Europe/Berlin")])),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from([ZoneInfo("Asia/Tokyo")]),
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.frozensets(HASHABLE, max_size=3),
        st.dictionaries(TEXT | st.just("$type"), inner, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=2),
    ),
    max_leaves=6,
)


def stored(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What comes back from a store that keeps JSON."""
    decoded: dict[str, Any] = decode_kwargs(orjson.loads(orjson.dumps(encode_kwargs(kwargs))))
    return decoded


def kinds(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value), [kinds(item) for item in value]
    if isinstance(value, dict):
        return dict, {key: kinds(item) for key, item in value.items()}
    return type(value)


@settings(deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=3))
def test_comes_back_equal_and_of_the_same_type(kwargs: dict[str, Any]) -> None:
    """Whatever plain data goes in comes out, through a store that keeps JSON of 64-bit integers."""
    assert stored(kwargs) == kwargs
    assert kinds(stored(kwargs)) == kinds(kwargs)


def test_what_json_has_is_written_as_it_is() -> None:
    """Plain arguments are stored as their author wrote them."""
    plain = {"match": {"$or": [{"a": [1, None, True]}, {"b": ["x"]}]}, "seconds": 1.5, "text": "é\0"}
    assert encode_kwargs(plain) == plain


def test_the_stored_form_does_not_change() -> None:
    """What was stored by the first version is read by every later one."""
    kwargs = {
        "at": datetime(2026, 7, 1, 12, tzinfo=UTC),
        "in_zone": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        "day": date(2026, 7, 1),
        "hour": time(12, 30),
        "delta": timedelta(days=-1, microseconds=1),
        "zone": ZoneInfo("UTC"),
        "pair": (1, (2,)),
        "set": {3, 1, 2},
        "frozen": frozenset({"b", "a"}),
        "bytes": b"\xff",
        "decimal": Decimal("1.50"),
        "uuid": UUID(int=1),
        "big": 2**70,
        "endless": float("inf"),
        "keys": {1: "x"},
        "tag": {"$type": "tuple/1"},
    }
    text = """{
        "at": {"$type": "datetime/1", "value": "2026-07-01T12:00:00+00:00"},
        "in_zone": {"$type": "datetime/1", "value": {"at": "2026-10-25T02:30:00+01:00", "zone": "Europe/Berlin"}},
        "day": {"$type": "date/1", "value": "2026-07-01"},
        "hour": {"$type": "time/1", "value": "12:30:00"},
        "delta": {"$type": "timedelta/1", "value": [-1, 0, 1]},
        "zone": {"$type": "zone/1", "value": "UTC"},
        "pair": {"$type": "tuple/1", "value": [1, {"$type": "tuple/1", "value": [2]}]},
        "set": {"$type": "set/1", "value": [1, 2, 3]},
        "frozen": {"$type": "frozenset/1", "value": ["a", "b"]},
        "bytes": {"$type": "bytes/1", "value": "/w=="},
        "decimal": {"$type": "decimal/1", "value": "1.50"},
        "uuid": {"$type": "uuid/1", "value": "00000000-0000-0000-0000-000000000001"},
        "big": {"$type": "int/1", "value": "1180591620717411303424"},
        "endless": {"$type": "float/1", "value": "inf"},
        "keys": {"$type": "dict/1", "value": [[1, "x"]]},
        "tag": {"$type": "dict/1", "value": [["$type", "tuple/1"]]}
    }"""
    assert encode_kwargs(kwargs) == json.loads(text)
    assert decode_kwargs(json.loads(text)) == kwargs
    zoned = decode_kwargs(json.loads(text))["in_zone"]
    assert (zoned.fold, str(zoned.tzinfo)) == (1, "Europe/Berlin")


def test_enums_that_are_strings_or_numbers_are_written_as_those() -> None:
    """A `StrEnum` or `IntEnum` member comes back as its value, which equals it."""

    class Level(StrEnum):
        HIGH = "high"

    class Priority(IntEnum):
        TOP = 1

    assert encode_kwargs({"level": Level.HIGH, "priority": [Priority.TOP]}) == {"level": "high", "priority": [1]}


def test_what_cannot_be_stored_is_named_by_its_key_and_never_shown() -> None:
    """All wrong arguments at once, each by its key and type; the value may be a secret."""

    class Mode(Enum):
        FAST = "fast"

    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(ConfigError) as raised:
        encode_kwargs(
            {
                "hooks": [1, {"on": len}],
                "mode": Mode.FAST,
                "secret": object(),
                "text": "half \ud800",
                "itself": itself,
                "keys": {("a", b"b", Mode.FAST): 1},
            }
        )
    lines = raised.value.problems
    assert [line.split(":")[0] for line in lines] == [
        "kwargs.hooks[1]['on']",
        "kwargs.mode",
        "kwargs.secret",
        "kwargs.text",
        "kwargs.itself" + "[0]" * 101,
        "kwargs.keys",
    ]
    assert "a builtin_function_or_method cannot be stored" in lines[0]
    assert "Mode cannot be stored" in lines[1]
    assert "0x" not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            {"$type": "datetime/2", "value": "?"},
            "kwargs.a['b']: stored as 'datetime/2', which this version of Headrace does not know",
        ),
        ({"$type": "lambda/1", "value": "?"}, "kwargs.a['b']: stored as 'lambda/1'"),
        ({"$type": "datetime/1", "value": "?"}, "kwargs.a['b']: stored as 'datetime/1', and no such value"),
        ({"$type": "zone/1", "value": "Mars/Base"}, "kwargs.a['b']: stored as 'zone/1', and no such value"),
        ({"$type": "decimal/1", "value": "x"}, "kwargs.a['b']: stored as 'decimal/1', and no such value"),
        ({"$type": "set/1", "value": [[1]]}, "kwargs.a['b']: stored as 'set/1', and no such value"),
        ({"$type": "dict/1", "value": 1}, "kwargs.a['b']: stored as 'dict/1', and no such value"),
        ({"$type": 7}, "kwargs.a['b']: stored as 7"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_key(value: Any, problem: str) -> None:
    """Stored by a later version, or damaged: a line with the key, and no guess."""
    with pytest.raises(ConfigError) as raised:
        decode_kwargs({"a": {"b": value}, "fine": 1})
    assert problem in str(raised.value)
