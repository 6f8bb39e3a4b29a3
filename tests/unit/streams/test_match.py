"""The match index, against a scan of every spec that is written for clarity."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connector import Message
from headrace.streams.match import MAX_ENTRIES, MatchIndex


def values_of(node: Any, names: list[str]) -> list[Any]:
    """All values at a dotted field, by recursion: the names are consumed one, two, three … at a time."""
    if isinstance(node, list):
        return [value for element in node for value in values_of(element, names)]
    if not names:
        return [] if isinstance(node, dict) else [node]
    if not isinstance(node, dict):
        return []
    return [
        value
        for count in range(1, len(names) + 1)
        if ".".join(names[:count]) in node
        for value in values_of(node[".".join(names[:count])], names[count:])
    ]


def same(left: Any, right: Any) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def wants(spec: Mapping[str, Collection[Any]], document: Any) -> bool:
    if not isinstance(document, dict):
        return True
    return all(
        any(same(value, wanted) for value in values_of(document, field.split(".")) for wanted in values)
        for field, values in spec.items()
    )


NAMES = st.sampled_from(["a", "b", "c", "a.b", "b.c", "a.b.c", ""])
SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, 2, 0.5, "", "1", "true", "x", "y", 2**53, float(2**53)])
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.dictionaries(NAMES, DOCUMENTS, max_size=4) | DOCUMENTS
SPECS = st.dictionaries(NAMES, st.lists(SCALARS, max_size=3), max_size=3)


@settings(deadline=None)
@given(st.lists(SPECS, max_size=8), st.sets(st.integers(0, 7)), EVENTS)
def test_equals_a_scan_of_every_spec(specs: list[Any], removed: set[int], event: Any) -> None:
    """The index finds exactly the subscribers that a scan of all specs finds, in the order in which they came."""
    index: MatchIndex[int] = MatchIndex()
    for number, spec in enumerate(specs):
        index.add(number, spec)
    for number in removed:
        index.remove(number)
    assert list(index.match(event)) == [
        number for number, spec in enumerate(specs) if number not in removed and wants(spec, event)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), SPECS), max_size=12), EVENTS)
def test_nothing_is_left_of_who_left(steps: list[Any], event: Any) -> None:
    """However subscribers come and go, an index that all have left holds nothing."""
    index: MatchIndex[int] = MatchIndex()
    for number, spec in steps:
        if number in index:
            index.remove(number)
        else:
            index.add(number, spec)
    for number in range(5):
        index.remove(number)
        assert number not in index
    assert len(index) == 0
    assert list(index.match(event)) == []
    assert index.entries == 0


@pytest.mark.parametrize(
    ("wanted", "value", "found"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, 1, False),
        (True, True, True),
        (False, 0, False),
        ("1", 1, False),
        (1, "1", False),
        (None, None, True),
        (None, "", False),
        (None, False, False),
        ("", "", True),
        ("x", ["y", "x"], True),
        ("x", [["y", ["x"]]], True),
        (True, [1, True], True),
        (1, [True], False),
        (None, [None], True),
        ("x", [], False),
        ("x", {"x": "x"}, False),
        ("x", [{"x": "x"}], False),
        ("x", "X", False),
        (2**53 + 1, float(2**53), False),
    ],
)
def test_values_compare_as_json_does(wanted: Any, value: Any, found: bool) -> None:
    """A value matches one of its own kind only, numbers by what they are worth; an array matches by any of its elements."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"f": [wanted]})
    index.add("dotted", {"o.f": [wanted]})
    index.add("two", {"f": [wanted], "o.f": [wanted]})
    assert list(index.match({"f": value, "o": {"f": value}})) == (["s", "dotted", "two"] if found else [])


def test_null_is_a_value_and_a_missing_field_has_none() -> None:
    """A field that is null matches null; one that is not there matches nothing."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"f": [None]})
    assert list(index.match({"f": None})) == ["s"]
    assert list(index.match({})) == []


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"a": {"b": {"c": 1}}}, True),
        ({"a.b": {"c": 1}}, True),
        ({"a": {"b.c": 1}}, True),
        ({"a.b.c": 1}, True),
        ({"a": [{"b": [{"c": 0}, {"c": [5, 1]}]}]}, True),
        ({"a": 7, "a.b": {"c": 1}}, True),
        ({"a": {"b": {"c": 2}}, "a.b.c": 1}, True),
        ({"a": {"b": 1}}, False),
        ({"a": {"b": {"c": {"d": 1}}}}, False),
        ({"c": 1, "b.c": 1}, False),
    ],
)
def test_a_dotted_field_is_a_path_and_also_a_name_with_dots(event: Any, found: bool) -> None:
    """`a.b.c` is read as objects in objects and as names that hold the dots, whichever the event has."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"a.b.c": [1]})
    assert bool(index.match(event)) is found


class Unreadable:
    def json(self) -> Any:
        raise RuntimeError("a stranger's error")


class BrokenMapping(dict[str, Any]):
    def get(self, key: str, default: Any = None) -> Any:
        raise KeyError(key)


@pytest.mark.parametrize(
    "raw",
    [
        Unreadable(),
        Message(value=b"{", id="1", source="s", timestamp=0.0),
        Message(value=None, id="1", source="s", timestamp=0.0),
        Message(value=b"[1]", id="1", source="s", timestamp=0.0),
        BrokenMapping(f=1),
        b"{}",
        "text",
        None,
        7,
        [{"f": 1}],
    ],
    ids=lambda raw: type(raw).__name__,
)
def test_what_cannot_be_read_goes_to_everybody(raw: Any) -> None:
    """An event that does not decode, or is no object, goes to every subscriber in the index, in order."""
    index: MatchIndex[str] = MatchIndex()
    index.add("b", {"f": ["x"]})
    index.add("a", {"o.f": ["x"], "g": ["y"]})
    index.add("never", {"f": []})
    assert list(index.match(raw)) == ["b", "a", "never"]


def test_reads_messages_and_mappings_of_any_kind() -> None:
    """A message is read by its `json()`, decoded once; a mapping that is no dict, as one that is."""
    index: MatchIndex[str] = MatchIndex()
    index.add("plain", {"f": ["x"]})
    index.add("dotted", {"o.f": ["x"]})
    for raw in (
        Message(value=b'{"f": "x", "o": {"f": "x"}}', id="1", source="s", timestamp=0.0),
        MappingProxyType({"f": "x", "o": MappingProxyType({"f": "x"})}),
        {"f": ("x",), "o": ({"f": "x"},)},
    ):
        assert list(index.match(raw)) == ["plain", "dotted"]


def test_unhashable_values_and_bottomless_arrays_raise_nothing() -> None:
    """Values that cannot be looked up match nothing; arrays nested deeper than Python recurses are read to the bottom."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"f": ["x"]})
    deep: Any = ["x"]
    for _ in range(5000):
        deep = [deep]
    assert list(index.match({"f": deep})) == ["s"]
    assert list(index.match({"f": bytearray(b"x")})) == []
    assert list(index.match({"f": [{"x": [{}]}, {"y"}, "x"]})) == ["s"]


def test_an_event_that_matches_twice_finds_its_subscriber_once() -> None:
    """A subscriber is found once, by however many of its values; all that are found come in the order of their coming."""
    index: MatchIndex[str] = MatchIndex()
    index.add("both", {"f": ["x", "y"]})
    index.add("other field", {"g": [1]})
    index.add("y", {"f": ["y"]})
    index.add("two fields", {"f": ["x", "y"], "g": [1, 2]})
    assert list(index.match({"f": ["y", "x", "x"], "g": [2, 1]})) == ["both", "other field", "y", "two fields"]


def test_an_empty_spec_wants_every_event_and_a_field_without_values_none() -> None:
    """No condition is no restriction; a condition that nothing meets is met by nothing."""
    index: MatchIndex[str] = MatchIndex()
    index.add("all", {})
    index.add("none", {"f": []})
    assert list(index.match({})) == ["all"]


def test_who_comes_again_comes_last() -> None:
    """A subscriber that left and came back is found behind those that stayed."""
    index: MatchIndex[str] = MatchIndex()
    index.add("a", {"f": ["x"]})
    index.add("b", {"f": ["x"]})
    index.remove("a")
    index.add("a", {"f": ["x"]})
    assert list(index.match({"f": "x"})) == ["b", "a"]


@pytest.mark.parametrize("spec", [{"f": "eu"}, {"f": 1}, {"f": [["x"]]}, {"f": [{"x": 1}]}, {"f": [("x",)]}])
def test_a_spec_that_could_never_match_is_refused(spec: Any) -> None:
    """A string where a list is meant, an object or an array as a value: refused when declared, and nothing is left behind."""
    index: MatchIndex[str] = MatchIndex()
    with pytest.raises(TypeError, match="'f'"):
        index.add("s", spec)
    assert len(index) == 0


def test_the_same_subscriber_twice_is_refused() -> None:
    """A subscriber is in the index once."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"f": ["x"]})
    with pytest.raises(ValueError, match="already"):
        index.add("s", {"f": ["y"]})


def test_many_values_in_many_fields_do_not_multiply_without_bound() -> None:
    """A subscriber takes a bounded number of entries; beyond it, its widest fields are left to its filter."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"a": range(1000), "b": range(100), "c": range(10)})
    assert index.entries <= MAX_ENTRIES
    assert list(index.match({"a": 999, "b": 99, "c": 9})) == ["s"]
    assert list(index.match({"a": 999, "b": 100, "c": 9})) == []
    assert list(index.match({"a": 1000, "b": 99, "c": 9})) == ["s"]  # one too many, never one too few


def test_an_event_with_long_arrays_costs_no_more_than_the_entries() -> None:
    """Three arrays of 1 000 elements are not multiplied out: the few entries there are are looked through."""
    index: MatchIndex[str] = MatchIndex()
    index.add("s", {"a": range(10), "b": range(10), "c": range(10)})
    index.add("t", {"a": [999], "b": [999], "c": [999, -1]})
    event = {name: list(range(1000)) for name in "abc"}
    began = time.perf_counter()
    assert list(index.match(event)) == ["s", "t"]
    assert time.perf_counter() - began < 1  # multiplied out it takes minutes


def test_the_cost_of_an_event_does_not_grow_with_the_subscribers() -> None:
    """An event that nobody matches costs the same at 10 000 subscribers as at 100; who share a value share one result."""

    def index_of(size: int) -> MatchIndex[int]:
        index: MatchIndex[int] = MatchIndex()
        for number in range(size):
            index.add(number, {"customer": [f"c{number}"]})
        return index

    def cost(index: MatchIndex[int]) -> float:
        event = {"customer": "nobody", "region": "eu"}
        best = float("inf")
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(200):
                index.match(event)
            best = min(best, time.perf_counter() - began)
        return best

    few, many = index_of(100), index_of(10_000)
    assert min(cost(many) / cost(few) for _ in range(5)) < 1.5
    for number in range(10_000):
        many.add(("shared", number), {"region": ["eu"]})  # type: ignore[arg-type]
    first = many.match({"region": "eu"})
    assert len(first) == 10_000
    assert many.match({"region": "eu"}) is first
