"""Event patterns, operator by operator: what they match, what they refuse, and what they tell the index.

The tables were run through Amazon's own matcher (event-ruler 1.8.1) as well; where it decides otherwise, the case says why.
"""

from __future__ import annotations

import time
from datetime import date
from types import MappingProxyType
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.triggers import EventPattern, PatternError

YES, NO = True, False
ABSENT = {"exists": False}


def matches(pattern: Any, event: Any) -> bool:
    return EventPattern(pattern).matches(event)


@pytest.mark.parametrize(
    ("entry", "value", "expected"),
    [
        # exact values
        ("eu", "eu", YES),
        ("eu", "EU", NO),
        ("é", "e\u0301", NO),
        ("", "", YES),
        ("", None, NO),
        (None, None, YES),
        (None, "", NO),
        (None, [None, 1], YES),
        (True, True, YES),
        (True, "true", NO),
        (True, 1, NO),
        (False, 0, NO),
        (1, 1.0, YES),
        (1.0, 1, YES),
        (1, "1", NO),
        (1, True, NO),
        (-0.0, 0, YES),
        (10**12, 10**12, YES),
        (2**53 + 1, 2**53, NO),
        ("eu", ["us", "eu"], YES),
        ("eu", [], NO),
        ("eu", [["us"], [["eu"]]], YES),
        ("eu", [{"b": "eu"}, "eu"], YES),
        ("eu", {"eu": "eu"}, NO),
        ("10.0.0.1", "10.0.0.01", NO),  # Amazon's matcher takes strings for addresses here; its documentation says exact
        # prefix and suffix
        ({"prefix": "eu-"}, "eu-west", YES),
        ({"prefix": "eu-"}, "EU-west", NO),
        ({"prefix": "eu-"}, "eu", NO),
        ({"prefix": ""}, "", YES),
        ({"prefix": ""}, 1, NO),
        ({"prefix": "1"}, 12, NO),
        ({"prefix": {"equals-ignore-case": "EU-"}}, "eu-west", YES),
        ({"suffix": ".png"}, "a.png", YES),
        ({"suffix": ".png"}, "a.PNG", NO),
        ({"suffix": ""}, "a", YES),
        ({"suffix": {"equals-ignore-case": ".PNG"}}, "a.png", YES),
        # equals-ignore-case
        ({"equals-ignore-case": "EU"}, "eu", YES),
        ({"equals-ignore-case": "EU"}, "eu ", NO),
        ({"equals-ignore-case": "straße"}, "STRASSE", YES),
        ({"equals-ignore-case": "äÖ"}, "ÄÖ", YES),
        ({"equals-ignore-case": "i"}, "İ", NO),
        ({"equals-ignore-case": "\u03c3"}, "\u03c2", YES),  # Amazon's matcher maps letter by letter and says no
        ({"equals-ignore-case": "1"}, 1, NO),
        # wildcard
        ({"wildcard": "a*c"}, "abbc", YES),
        ({"wildcard": "a*c"}, "ac", YES),
        ({"wildcard": "a*c"}, "acb", NO),
        ({"wildcard": "a*a"}, "a", NO),
        ({"wildcard": "*"}, "", YES),
        ({"wildcard": "*"}, 1, NO),
        ({"wildcard": "*"}, None, NO),
        ({"wildcard": ""}, "", YES),
        ({"wildcard": "a*"}, "a\nb", YES),
        ({"wildcard": "*ab*ab*"}, "xababx", YES),
        ({"wildcard": "*ab*ab*"}, "xabx", NO),
        ({"wildcard": "*ab*b"}, "ab", NO),
        ({"wildcard": "*ab*b"}, "abb", YES),
        ({"wildcard": "a.c"}, "abc", NO),
        ({"wildcard": "a\\*b"}, "a*b", YES),
        ({"wildcard": "a\\*b"}, "axb", NO),
        ({"wildcard": "a\\\\b"}, "a\\b", YES),
        ({"wildcard": "a\\\\*b"}, "a\\xb", YES),
        ({"wildcard": "*\\**"}, "a*b", YES),
        ({"wildcard": "*\\**"}, "ab", NO),
        # anything-but
        ({"anything-but": "eu"}, "us", YES),
        ({"anything-but": "eu"}, "eu", NO),
        ({"anything-but": "eu"}, "EU", YES),
        ({"anything-but": "eu"}, None, YES),
        ({"anything-but": "eu"}, 1, YES),
        ({"anything-but": "eu"}, ["eu", "us"], YES),
        ({"anything-but": "eu"}, ["eu"], NO),
        ({"anything-but": "eu"}, [], NO),
        ({"anything-but": "eu"}, {"b": "us"}, NO),
        ({"anything-but": ["eu", "us"]}, "us", NO),
        ({"anything-but": ["eu", "us"]}, "uk", YES),
        ({"anything-but": 1}, 1.0, NO),
        ({"anything-but": 1}, "1", YES),
        ({"anything-but": 1}, True, YES),
        ({"anything-but": [1, 2]}, 3, YES),
        ({"anything-but": {"prefix": "eu-"}}, "eu-west", NO),
        ({"anything-but": {"prefix": "eu-"}}, 1, YES),
        ({"anything-but": {"prefix": ["eu-", "us-"]}}, "us-east", NO),
        ({"anything-but": {"suffix": ".png"}}, "a.png", NO),
        ({"anything-but": {"suffix": [".png", ".jpg"]}}, "a.gif", YES),
        ({"anything-but": {"equals-ignore-case": "EU"}}, "eu", NO),
        ({"anything-but": {"equals-ignore-case": ["EU", "US"]}}, "uk", YES),
        ({"anything-but": {"wildcard": "*/lib/*"}}, "a/lib/b", NO),
        ({"anything-but": {"wildcard": ["*/lib/*", "*/bin/*"]}}, "a/etc/b", YES),
        # numeric
        ({"numeric": ["=", 5]}, 5.0, YES),
        ({"numeric": ["=", 5]}, "5", NO),
        ({"numeric": ["=", 1]}, True, NO),
        ({"numeric": ["=", 0.1]}, 0.1000000001, NO),
        ({"numeric": [">", 5]}, 5, NO),
        ({"numeric": [">=", 5]}, 5, YES),
        ({"numeric": ["<", 5]}, 4.999999999, YES),
        ({"numeric": ["<=", 5]}, 5, YES),
        ({"numeric": [">", 0, "<=", 5]}, 5, YES),
        ({"numeric": [">", 0, "<=", 5]}, 0, NO),
        ({"numeric": [">", 0]}, None, NO),
        ({"numeric": [">", 6e9]}, 7e9, YES),
        ({"numeric": [">", 2**53]}, 2**53 + 1, YES),  # Amazon's has 15 digits
        ({"numeric": [">", 0]}, [-1, "x", 1], YES),
        # exists
        ({"exists": True}, None, YES),
        ({"exists": True}, "", YES),
        ({"exists": True}, [[0]], YES),
        ({"exists": True}, [], NO),
        ({"exists": True}, {}, NO),
        ({"exists": True}, {"b": 1}, NO),
        (ABSENT, None, NO),
        (ABSENT, [], YES),
        (ABSENT, {}, YES),
        (ABSENT, {"b": 1}, YES),
        # cidr
        ({"cidr": "10.0.0.0/24"}, "10.0.0.255", YES),
        ({"cidr": "10.0.0.0/24"}, "10.0.1.0", NO),
        ({"cidr": "10.0.0.77/24"}, "10.0.0.2", YES),
        ({"cidr": "0.0.0.0/0"}, "99.1.2.3", YES),
        ({"cidr": "0.0.0.0/0"}, "::1", NO),  # Amazon's matcher compares the digits and says yes
        ({"cidr": "10.0.0.1/32"}, "10.0.0.1", YES),  # Amazon's refuses a block of one
        ({"cidr": "10.0.0.0/8"}, "10.0.0.1/32", NO),
        ({"cidr": "10.0.0.0/8"}, "localhost", NO),
        ({"cidr": "10.0.0.0/8"}, 167772161, NO),
        ({"cidr": "10.0.0.0/8"}, ["x", "10.1.1.1"], YES),
        ({"cidr": "2001:db8::/32"}, "2001:DB8:0::1", YES),
        ({"cidr": "2001:db8::/32"}, "2001:db9::1", NO),
        ({"cidr": "10.0.0.0/8"}, "::ffff:a00:1", YES),
        ({"cidr": "10.0.0.0/8"}, "::ffff:10.0.0.1", YES),  # Amazon's knows the first of these two forms only
        ({"cidr": "::ffff:0:0/96"}, "::ffff:10.0.0.1", YES),  # Amazon's takes this block for IPv4
    ],
    ids=repr,
)
def test_what_an_entry_matches(entry: Any, value: Any, expected: bool) -> None:
    """Each operator on values of each kind, at the top, in an object, and as the first of two entries."""
    assert matches({"a": [entry]}, {"a": value}) is expected
    assert matches({"o": {"a": [entry]}}, {"o": {"a": value}}) is expected
    assert matches({"a": [entry, "no such value"]}, {"a": value}) is expected


@pytest.mark.parametrize(
    "entry",
    ["eu", None, {"prefix": ""}, {"wildcard": "*"}, {"anything-but": "eu"}, {"anything-but": {"prefix": "x"}}, {"exists": True}],
    ids=repr,
)
def test_only_exists_false_matches_a_field_that_is_not_there(entry: Any) -> None:
    """A missing field has no value: nothing compares with it, `anything-but` neither; `exists: false` alone wants it so."""
    for event in ({}, {"b": 1}, {"o": 1}, {"o": {}}, {"o": [{"b": 1}]}):
        assert not matches({"a": [entry]}, event)
        assert not matches({"o": {"a": [entry]}}, event)
        assert matches({"a": [ABSENT]}, event)
        assert matches({"o": {"a": [ABSENT]}}, event)
        assert matches({"a": [entry, ABSENT]}, event)


@pytest.mark.parametrize(
    ("pattern", "event", "expected"),
    [
        ({"a": [1], "b": [2]}, {"a": 1, "b": 2}, YES),
        ({"a": [1], "b": [2]}, {"a": 1, "b": 3}, NO),
        ({"a": [1, 2, 2]}, {"a": 2}, YES),
        ({"a": {"b": {"c": [1]}}}, {"a": {"b": {"c": 1, "d": 2}}, "e": 3}, YES),
        ({"a": {"b": [1]}}, {"a": 1}, NO),
        # names with dots
        ({"a": {"b": [1]}}, {"a.b": 1}, YES),
        ({"a.b": [1]}, {"a": {"b": 1}}, YES),
        ({"a.b": [1]}, {"a.b": 1}, YES),
        ({"a.b": {"c": [1]}}, {"a": {"b.c": 1}}, YES),
        # $or
        ({"$or": [{"a": [1]}, {"b": [1]}]}, {"b": 1}, YES),
        ({"$or": [{"a": [1]}, {"b": [1]}]}, {"c": 1}, NO),
        ({"c": [1], "$or": [{"a": [1]}, {"b": [1]}]}, {"a": 1}, NO),
        ({"c": [1], "$or": [{"a": [1]}, {"b": [1]}]}, {"a": 1, "c": 1}, YES),
        ({"o": {"$or": [{"a": [1]}, {"b": [1]}], "c": [1]}}, {"o": {"b": 1, "c": 1}}, YES),
        ({"o": {"$or": [{"a": [1]}, {"b": [1]}], "c": [1]}}, {"o": {"b": 1}}, NO),
        ({"$or": [{"a": [1], "$or": [{"b": [1]}, {"c": [1]}]}, {"d": [1]}]}, {"a": 1, "c": 1}, YES),
        ({"$or": [{"a": [1], "$or": [{"b": [1]}, {"c": [1]}]}, {"d": [1]}]}, {"a": 1}, NO),
        ({"$or": [{"a": [1], "$or": [{"b": [1]}, {"c": [1]}]}, {"d": [1]}]}, {"d": 1}, YES),
        ({"$or": [{"a": [ABSENT]}, {"a": [1]}]}, {}, YES),
        # a field outside and inside $or: both (in Amazon's matcher the last one wins)
        ({"a": [{"prefix": "x"}], "$or": [{"a": [{"suffix": "y"}]}, {"b": [1]}]}, {"a": "xy"}, YES),
        ({"a": [{"prefix": "x"}], "$or": [{"a": [{"suffix": "y"}]}, {"b": [1]}]}, {"a": "y"}, NO),
        ({"a": [{"prefix": "x"}], "$or": [{"a": [{"suffix": "y"}]}, {"b": [1]}]}, {"a": "x", "b": 1}, YES),
        # $or is an operator, also beside alternatives with a field that is called as one (Amazon's then takes it for a field)
        ({"$or": [{"prefix": [1]}, {"a": [1]}]}, {"prefix": 1}, YES),
        # arrays of objects
        ({"a": {"b": [1]}}, {"a": [{"b": 0}, {"b": 1}]}, YES),
        ({"a": {"b": [1]}}, {"a": [[{"b": 1}]]}, YES),
        ({"a": {"b": [1], "c": [2]}}, {"a": [{"b": 1, "c": 0}, {"b": 0, "c": 2}]}, NO),
        ({"a": {"b": [1], "c": [2]}}, {"a": [{"b": 0, "c": 2}, {"b": 1, "c": 2}]}, YES),
        ({"a": {"b": [1], "c": [2]}}, {"a": [{"b": [5, 1], "c": [3, 2]}]}, YES),
        ({"a": {"b": [1], "c": [2]}}, {"a": [[{"b": 1}], [{"c": 2}]]}, NO),
        ({"a": {"b": [1]}, "d": [1]}, {"a": [{"b": 1}], "d": [1]}, YES),
        ({"a": {"b": {"c": [1]}, "d": {"e": [2]}}}, {"a": {"b": [{"c": 1}], "d": [{"z": 1}, {"e": 2}]}}, YES),
        ({"a": {"b": {"c": [1]}, "d": [2]}}, {"a": [{"b": [{"c": 0}, {"c": 1}], "d": 2}]}, YES),
        ({"a": {"b": {"c": [1]}, "d": [2]}}, {"a": [{"b": [{"c": 0}, {"c": 1}]}, {"d": 2}]}, NO),
        ({"a": {"$or": [{"b": [1]}, {"c": [1]}], "d": [1]}}, {"a": [{"b": 1}, {"d": 1}]}, NO),
        ({"a": {"$or": [{"b": [1]}, {"c": [1]}], "d": [1]}}, {"a": [{"b": 1}, {"c": 1, "d": 1}]}, YES),
        ({"a": {"b": [1]}, "$or": [{"a": {"c": [2]}}, {"d": [1]}]}, {"a": [{"b": 1}, {"c": 2}]}, NO),
        ({"a": {"b": [1]}, "$or": [{"a": {"c": [2]}}, {"d": [1]}]}, {"a": [{"b": 1}, {"c": 2}], "d": 1}, YES),
        # exists: false in arrays of objects
        ({"a": {"b": [ABSENT]}}, {"a": [{"b": 1}, {"c": 2}]}, NO),
        ({"a": {"b": [ABSENT], "c": [ABSENT]}}, {"a": [{"b": 1}, {"c": 2}]}, NO),
        ({"a": {"b": [2], "c": [ABSENT]}}, {"a": [{"c": 1}, {"b": 2}]}, YES),
        ({"a": {"c": [2], "b": [ABSENT]}}, {"a": [{"b": 1}, {"c": 2}]}, YES),  # Amazon's: yes for c before b, no for b before c
        ({"a": {"b": [2], "c": [ABSENT]}}, {"a": [{"b": 2, "c": 1}]}, NO),
        ({"a": {"b": [2], "c": [1, ABSENT]}}, {"a": [{"b": 2, "c": 0}, {"b": 2, "c": 1}]}, YES),
    ],
    ids=repr,
)
def test_how_fields_go_together(pattern: Any, event: Any, expected: bool) -> None:
    """All fields of an object, any alternative of `$or`, one element of an array of objects."""
    assert matches(pattern, event) is expected


@pytest.mark.parametrize("event", [None, 1, "a", [{"a": 1}], []])
def test_what_is_no_object_matches_nothing(event: Any) -> None:
    """A pattern is about an object's fields: other JSON has none, and lacks none."""
    assert not matches({"a": [1]}, event)
    assert not matches({"a": [ABSENT]}, event)


def test_matches_what_is_not_quite_json() -> None:
    """Mappings that are no dicts, tuples and values of other types, as a producer of one's own may yield them."""
    pattern = {"a": {"b": [1], "c": [{"anything-but": "x"}]}}
    assert matches(pattern, MappingProxyType({"a": ({"b": 1, "c": date(2026, 1, 1)},)}))
    assert matches(pattern, {"a": {"b": 1, "c": bytearray(b"x")}})
    assert not matches({"a": [1, {"numeric": [">", 0]}, {"prefix": "x"}]}, {"a": bytearray(b"x")})


@pytest.mark.parametrize(
    ("pattern", "problems"),
    [
        ({}, ["match: expected an object of fields, found an empty object"]),
        ([], ["match: expected an object of fields, found an empty list"]),
        ({"a": {}}, ["match.a: expected an object of fields, found an empty object"]),
        ({"a": []}, ["match.a: expected a list of values, found an empty list"]),
        ({"a": "eu"}, ['match.a: expected a list of values or an object of fields, found "eu"; write ["eu"]']),
        ({"a": None}, ["match.a: expected a list of values or an object of fields, found null; write [null]"]),
        ({"a": {"exists": True}}, ['found true; the operator is written [{"exists": false}]']),
        ({True: [1]}, ["match: expected field names that are strings, found true (write it in quotes)"]),
        ({"a b": [[1]]}, ['match["a b"][0]: expected a string, number, true, false, null or an operator']),
        ({"a": [date(2026, 1, 2)]}, ["found the date 2026-01-02 (write it in quotes)"]),
        ({"a": [float("nan")]}, ["match.a[0]: expected a string, number"]),
        ({"a": [{}]}, ["match.a[0]: expected an object of one operator, found an empty object"]),
        ({"a": [{"prefix": "x", "suffix": "y"}]}, ["match.a[0]: expected an object of one operator, found an object of 2"]),
        ({"a": [{"prefx": "x"}]}, ["match.a[0].prefx: unknown operator; known are prefix, ", "; did you mean 'prefix'?"]),
        ({"a": [{1: "x"}]}, ["match.a[0]: expected one of the operators prefix, ", "found 1"]),
        ({"a": [{"prefix": 1}]}, ['match.a[0].prefix: expected a string or {"equals-ignore-case": string}, found 1']),
        ({"a": [{"prefix": ["x"]}]}, ["match.a[0].prefix: expected a string", "found a list of 1"]),
        ({"a": [{"suffix": {"prefix": "x"}}]}, ["match.a[0].suffix: expected a string", "found an object"]),
        ({"a": [{"suffix": {"equals-ignore-case": 1}}]}, ["match.a[0].suffix.equals-ignore-case: expected a string, found 1"]),
        ({"a": [{"equals-ignore-case": ["x"]}]}, ["match.a[0].equals-ignore-case: expected a string, found a list of 1"]),
        ({"a": [{"wildcard": 1}]}, ["match.a[0].wildcard: expected a string, found 1"]),
        ({"a": [{"wildcard": "a**b"}]}, ['match.a[0].wildcard: consecutive asterisks are not allowed in "a**b"']),
        ({"a": [{"wildcard": "a\\b"}]}, ["match.a[0].wildcard: a backslash escapes an asterisk or a backslash only"]),
        ({"a": [{"wildcard": "a\\"}]}, ["match.a[0].wildcard: a backslash escapes"]),
        ({"a": [{"exists": 1}]}, ["match.a[0].exists: expected true or false, found 1"]),
        ({"a": [{"anything-but": None}]}, ["match.a[0].anything-but: expected a string, a number,", "found null"]),
        ({"a": [{"anything-but": True}]}, ["match.a[0].anything-but: expected", "found true"]),
        ({"a": [{"anything-but": []}]}, ["match.a[0].anything-but: expected", "found an empty list"]),
        ({"a": [{"anything-but": ["x", 1]}]}, ["found a list of 2 that is not all strings or all numbers"]),
        ({"a": [{"anything-but": {"numeric": [">", 1]}}]}, ["expected one of the operators prefix, suffix", 'found "numeric"']),
        ({"a": [{"anything-but": {"prefix": ""}}]}, ["match.a[0].anything-but.prefix: expected a string that is not empty"]),
        ({"a": [{"anything-but": {"prefix": []}}]}, ["match.a[0].anything-but.prefix: expected", "found an empty list"]),
        ({"a": [{"anything-but": {"suffix": ["x", 1]}}]}, ["match.a[0].anything-but.suffix[1]: expected a string, found 1"]),
        ({"a": [{"anything-but": {"prefix": {"equals-ignore-case": "x"}}}]}, ["anything-but.prefix: expected a string"]),
        ({"a": [{"anything-but": {"wildcard": ["x", "**"]}}]}, ["match.a[0].anything-but.wildcard[1]: consecutive"]),
        ({"a": [{"numeric": 5}]}, ["match.a[0].numeric: expected a list such as", "found 5"]),
        ({"a": [{"numeric": ["=", "5"]}]}, ['match.a[0].numeric[1]: expected a number, found "5"']),
        ({"a": [{"numeric": ["=", True]}]}, ["match.a[0].numeric[1]: expected a number, found true"]),
        ({"a": [{"numeric": ["!=", 5]}]}, ["match.a[0].numeric[0]: expected one of", 'found "!="']),
        ({"a": [{"numeric": ["<", 5, ">", 0]}]}, ["match.a[0].numeric[0]: expected", "(the lower limit comes first)"]),
        ({"a": [{"numeric": [">", 0, "=", 5]}]}, ['match.a[0].numeric[2]: expected "<" or "<=", found "="']),
        ({"a": [{"numeric": [">", 5, "<", 0]}]}, ["the lower limit 5 is not below the upper limit 0"]),
        ({"a": [{"numeric": [">=", 5, "<=", 5]}]}, ["is not below the upper limit 5; write"]),
        ({"a": [{"cidr": "10.0.0.0"}]}, ["match.a[0].cidr: expected a block of addresses such as", 'found "10.0.0.0"']),
        ({"a": [{"cidr": "10.0.0.0/255.0.0.0"}]}, ["match.a[0].cidr: expected a block of addresses"]),
        ({"a": [{"cidr": "10.0.0.0/33"}]}, ["match.a[0].cidr: no block of addresses"]),
        ({"a": [{"cidr": "10.0.0.256/8"}]}, ["match.a[0].cidr: no block of addresses"]),
        ({"a": [{"cidr": 1}]}, ["match.a[0].cidr: expected a block of addresses"]),
        ({"$or": {"a": [1]}}, ["match.$or: expected a list of at least two objects of fields, found an object"]),
        ({"$or": [{"a": [1]}]}, ["match.$or: expected a list of at least two objects of fields, found a list of 1"]),
        ({"$or": [{"a": [1]}, 2]}, ["match.$or[1]: expected an object of fields, found 2"]),
        ({"$or": [{"a": [1]}, {}]}, ["match.$or[1]: expected an object of fields, found an empty object"]),
        (
            {"a": {"$or": [{"prefix": "x"}, {"suffix": "y"}]}},
            ['match.a.$or[0].prefix: expected a list of values or an object of fields, found "x"; the operator is written'],
        ),
    ],
    ids=repr,
)
def test_a_wrong_pattern_is_named_by_its_path(pattern: Any, problems: list[str]) -> None:
    """What cannot be right is a `ConfigError` that says where, what was expected, and what is there."""
    with pytest.raises(PatternError) as raised:
        EventPattern(pattern)
    for problem in problems:
        assert problem in str(raised.value)


def test_all_mistakes_are_told_at_once() -> None:
    """One line for each mistake, each with its place as keys and indexes too, for those who know the file's lines."""
    with pytest.raises(ConfigError) as raised:
        EventPattern({"a": "x", "b": {"c": [{"numeric": [">"]}, {"cidr": "?"}]}, "$or": [{"d": []}, {"e": [1]}]})
    assert [problem.split(":")[0] for problem in raised.value.problems] == [
        "match.a",
        "match.b.c[0].numeric",
        "match.b.c[1].cidr",
        "match.$or[0].d",
    ]
    assert isinstance(raised.value, PatternError)
    assert [mistake.place for mistake in raised.value.mistakes] == [
        ("a",),
        ("b", "c", 0, "numeric"),
        ("b", "c", 1, "cidr"),
        ("$or", 0, "d"),
    ]


def test_more_than_a_thousand_combinations_are_refused() -> None:
    """The ways through a pattern's `$or`s are bounded, as EventBridge bounds them."""

    def group(number: int) -> dict[str, Any]:
        return {"$or": [{f"f{number}.{alternative}": [1]} for alternative in range(10)]}

    three = {f"o{number}": group(number) for number in range(3)}
    assert EventPattern(three).matches({f"o{number}": {f"f{number}": {"9": 1}} for number in range(3)})
    with pytest.raises(ConfigError, match="10000 combinations"):
        EventPattern({**three, "o3": group(3)})


def test_a_field_that_is_probably_meant_as_an_operator_is_warned_of() -> None:
    """`amount: {numeric: [...]}` asks for a field `amount.numeric`: allowed, as there may be one, and told."""
    pattern = EventPattern({"amount": {"numeric": [">", 100]}})
    assert [warning.place for warning in pattern.warnings] == [("amount", "numeric")]
    assert '[{"numeric": [">", 0, "<=", 5]}]' in pattern.warnings[0].text
    assert EventPattern({"numeric": [1], "a": [{"numeric": [">", 100]}]}).warnings == ()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({"a": [1, "x", None, True]}, {"a": (1, "x", None, True)}),
        ({"a": {"b": ["x"]}, "c": [1]}, {"a.b": ("x",), "c": (1,)}),
        ({"a": ["x"], "b": [{"prefix": "y"}]}, {"a": ("x",)}),
        ({"a": ["x", {"prefix": "y"}]}, None),
        ({"a": ["x", ABSENT]}, None),
        ({"a": [{"exists": True}]}, None),
        ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, None),
        ({"$or": [{"a": ["x"], "b": [1]}, {"a": ["y"]}]}, {"a": ("x", "y")}),
        ({"a": ["x"], "$or": [{"a": ["y"]}, {"a": ["z"]}]}, {"a": ("x",)}),
        ({"$or": [{"$or": [{"a": [1]}, {"a": [2]}]}, {"a": [3]}]}, {"a": (1, 2, 3)}),
    ],
    ids=repr,
)
def test_exact_values_are_told_to_the_index(pattern: Any, expected: Any) -> None:
    """The fields that have to equal something, and nothing that a match could do without."""
    assert EventPattern(pattern).exact_values() == expected


def test_hostile_events_take_no_longer_than_their_size() -> None:
    """Long arrays that nearly match, arrays nested to the bottom, and strings that make a backtracking matcher hang."""
    pattern = EventPattern({"a": {"b": [1], "c": [1], "d": [1], "e": [ABSENT]}, "f": {"b": [1], "c": [ABSENT]}})
    elements = [{"b": index % 2, "c": 1, "d": 1 - index % 2, "e": 0} for index in range(5000)]
    wildcard = EventPattern({"a": [{"wildcard": "*a*a*a*a*a*a*a*a*b"}]})
    began = time.perf_counter()
    assert not pattern.matches({"a": elements, "f": elements})
    assert not EventPattern({"a": {"b": [1], "c": [1]}}).matches({"a": caterpillar(60)})
    assert not wildcard.matches({"a": "a" * 100_000})
    assert time.perf_counter() - began < 10  # some hundred milliseconds where the machine is quiet


def test_arrays_as_deep_as_json_goes_raise_nothing() -> None:
    """Arrays are nested deeper than Python recurses; below a depth that nobody uses their elements are not told apart."""
    assert EventPattern({"a": {"b": [1], "c": [1]}}).matches({"a": caterpillar(1000)})
    assert not EventPattern({"a": {"b": [1], "c": [2]}}).matches({"a": caterpillar(1000)})


def caterpillar(length: int) -> Any:
    """Arrays in arrays, each with a `b` and a `c` that are in different elements."""
    body: Any = [{"b": 1}, {"c": 1}]
    for _ in range(length):
        body = [body, [{"b": 1}, {"c": 1}], {"d": 1}]
    return body
