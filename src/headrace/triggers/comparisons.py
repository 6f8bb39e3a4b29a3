"""The comparison operators of event patterns: what one entry of a field's list says about one value.

Each operator is compiled once, to a function from a value to a bool, and reports what is wrong with its argument to a
`Problems` list with the place in the pattern. The operators, their arguments and their semantics are those of Amazon
EventBridge (https://docs.aws.amazon.com/eventbridge/latest/userguide/eb-create-pattern-operators.html, read on 2026-11-30);
what it refuses is refused, except that `cidr` takes blocks of one address. Read next: `eventbridge.py`, which puts the
fields together.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.streams.fields import value_key

Test: TypeAlias = Callable[[Any], bool]
"""Whether a value (of JSON: a string, number, bool or None) meets a comparison."""

_EXAMPLES: Final = {
    "prefix": '{"prefix": "eu-"}',
    "suffix": '{"suffix": ".png"}',
    "equals-ignore-case": '{"equals-ignore-case": "eu"}',
    "anything-but": '{"anything-but": ["us", "uk"]}',
    "numeric": '{"numeric": [">", 0, "<=", 5]}',
    "exists": '{"exists": false}',
    "wildcard": '{"wildcard": "orders/*.csv"}',
    "cidr": '{"cidr": "10.0.0.0/8"}',
}
OPERATORS: Final = tuple(_EXAMPLES)

_BOUNDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


Place: TypeAlias = "tuple[str | int, ...]"
"""Where in a pattern: the keys and list indexes from its top."""


class Mistake(NamedTuple):
    place: Place
    text: str


class Problems(list[Mistake]):
    """What is wrong with a pattern, all of it, in the order in which it is read."""

    def expected(self, place: Place, expected: str, found: Any, hint: str = "") -> None:
        self.add(place, f"expected {expected}, found {describe(found)}{hint}")

    def add(self, place: Place, text: str) -> None:
        self.append(Mistake(place, text))


def describe(value: Any) -> str:
    """A value of a pattern as its author wrote it, shortened."""
    if isinstance(value, Mapping):
        return "an object" if value else "an empty object"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, date):
        return f"the date {value} (write it in quotes)"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        return f"a Python {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_number(value: Any) -> bool:
    """Whether a value is a JSON number."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def is_exact(value: Any) -> bool:
    """Whether an entry of a field's list is a value to be equal to."""
    return value is None or isinstance(value, (str, bool)) or is_number(value)


def equals_one_of(values: Collection[Any]) -> Test:
    """Equal to one of the values: case and type count, numbers are equal when they are worth the same."""
    keys = frozenset(value_key(value) for value in values)

    def test(value: Any) -> bool:
        return value.__hash__ is not None and value_key(value) in keys

    return test


def any_of(tests: Sequence[Test]) -> Test:
    """Met by a value that meets one of the tests."""
    if len(tests) == 1:
        return tests[0]
    return lambda value: any(test(value) for test in tests)


def compile_comparison(name: str, argument: Any, place: Place, problems: Problems) -> Test | None:
    """Compile one operator but `exists`. None when its argument is wrong, which is then told to `problems`."""
    at = (*place, name)
    match name:
        case "prefix":
            return _affix(str.startswith, argument, at, problems)
        case "suffix":
            return _affix(str.endswith, argument, at, problems)
        case "equals-ignore-case":
            return _equals_ignore_case(argument, at, problems)
        case "wildcard":
            return _wildcard(argument, at, problems)
        case "anything-but":
            return _anything_but(argument, at, problems)
        case "numeric":
            return _numeric(argument, at, problems)
        case "cidr":
            return _cidr(argument, at, problems)
    problems.add(at, f"unknown operator; known are {', '.join(OPERATORS)}{_nearest(name)}")
    return None


def example_of(name: str) -> str:
    """How the operator is written, in a field's list."""
    return f"[{_EXAMPLES[name]}]"


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, OPERATORS, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _affix(has: Callable[[str, str], bool], argument: Any, at: Place, problems: Problems) -> Test | None:
    if isinstance(argument, str):
        affix: str = argument
        return lambda value: isinstance(value, str) and has(value, affix)
    if isinstance(argument, Mapping) and list(argument) == ["equals-ignore-case"]:
        folded = argument["equals-ignore-case"]
        if isinstance(folded, str):
            affix = folded.casefold()
            return lambda value: isinstance(value, str) and has(value.casefold(), affix)
        problems.expected((*at, "equals-ignore-case"), "a string", folded)
        return None
    problems.expected(at, 'a string or {"equals-ignore-case": string}', argument)
    return None


def _equals_ignore_case(argument: Any, at: Place, problems: Problems) -> Test | None:
    if not isinstance(argument, str):
        problems.expected(at, "a string", argument)
        return None
    folded = argument.casefold()
    return lambda value: isinstance(value, str) and value.casefold() == folded


def _wildcard(argument: Any, at: Place, problems: Problems) -> Test | None:
    if not isinstance(argument, str):
        problems.expected(at, "a string", argument)
        return None
    pieces = _wildcard_pieces(argument, at, problems)
    if pieces is None:
        return None
    first, *middle = pieces
    if not middle:
        return lambda value: isinstance(value, str) and value == first
    last = middle.pop()
    shortest = len(first) + len(last)

    def test(value: Any) -> bool:
        if not isinstance(value, str) or len(value) < shortest or not value.startswith(first) or not value.endswith(last):
            return False
        position, end = len(first), len(value) - len(last)
        for piece in middle:  # the leftmost place is always the best: no backtracking, whatever the value
            position = value.find(piece, position, end)
            if position < 0:
                return False
            position += len(piece)
        return True

    return test


def _wildcard_pieces(pattern: str, at: Place, problems: Problems) -> list[str] | None:
    """The literal text between the asterisks, escapes undone; None if the pattern is wrong."""
    pieces = [""]
    for token in re.findall(r"\\.?|\*+|[^\\*]+", pattern, re.DOTALL):
        if token[0] == "*":
            if len(token) > 1:
                problems.add(at, f"consecutive asterisks are not allowed in {describe(pattern)}")
                return None
            pieces.append("")
        elif token[0] == "\\":
            if token not in ("\\*", "\\\\"):
                problems.add(at, f"a backslash escapes an asterisk or a backslash only, in {describe(pattern)}")
                return None
            pieces[-1] += token[1]
        else:
            pieces[-1] += token
    return pieces


def _anything_but(argument: Any, at: Place, problems: Problems) -> Test | None:
    """Any value that is there and is none of those named; of another type it is none of them."""
    if isinstance(argument, Mapping):
        return _anything_but_operator(argument, at, problems)
    listed = list(argument) if isinstance(argument, (list, tuple)) else [argument]
    if not listed or not (all(isinstance(value, str) for value in listed) or all(is_number(value) for value in listed)):
        kinds = "a string, a number, a list of strings, a list of numbers, or one of " + ", ".join(_ANYTHING_BUT)
        problems.expected(at, kinds, argument, " that is not all strings or all numbers" if len(listed) > 1 else "")
        return None
    return _not(equals_one_of(listed))


def _anything_but_operator(argument: Mapping[Any, Any], at: Place, problems: Problems) -> Test | None:
    if len(argument) != 1 or next(iter(argument)) not in _ANYTHING_BUT:
        problems.add(at, f"expected one of the operators {', '.join(_ANYTHING_BUT)}, found {_keys_of(argument)}")
        return None
    ((name, operand),) = argument.items()
    listed = list(operand) if isinstance(operand, (list, tuple)) else [operand]
    if not listed:
        problems.expected((*at, name), "a string or a list of strings", operand)
        return None
    tests: list[Test] = []
    for number, text in enumerate(listed):
        place = (*at, name) if operand is text else (*at, name, number)
        if not isinstance(text, str):
            problems.expected(place, "a string", text)
        elif not text and name in ("prefix", "suffix"):
            problems.expected(place, "a string that is not empty (every string has the empty one)", text)
        elif (test := _ANYTHING_BUT[name](text, place, problems)) is not None:
            tests.append(test)
    return _not(any_of(tests)) if len(tests) == len(listed) else None


def _not(test: Test) -> Test:
    return lambda value: not test(value)


_ANYTHING_BUT: Final[Mapping[str, Callable[[Any, Place, Problems], Test | None]]] = {
    "prefix": lambda text, at, problems: _affix(str.startswith, text, at, problems),
    "suffix": lambda text, at, problems: _affix(str.endswith, text, at, problems),
    "equals-ignore-case": _equals_ignore_case,
    "wildcard": _wildcard,
}


def _numeric(argument: Any, at: Place, problems: Problems) -> Test | None:
    if not isinstance(argument, (list, tuple)) or len(argument) not in (2, 4):
        problems.expected(at, 'a list such as ["=", 5], [">", 0] or [">", 0, "<=", 5]', argument)
        return None
    for number, limit in list(enumerate(argument))[1::2]:
        if not is_number(limit):
            problems.expected((*at, number), "a number", limit)
            return None
    if len(argument) == 2:
        sign, limit = argument
        if sign == "=":
            return equals_one_of([limit])
        if not isinstance(sign, str) or sign not in _BOUNDS:
            problems.expected((*at, 0), 'one of "=", ">", ">=", "<", "<="', sign)
            return None
        compare = _BOUNDS[sign]
        return lambda value: is_number(value) and compare(value, limit)
    return _numeric_range(argument, at, problems)


def _numeric_range(argument: Sequence[Any], at: Place, problems: Problems) -> Test | None:
    low_sign, low, high_sign, high = argument
    if low_sign not in (">", ">="):
        problems.expected((*at, 0), '">" or ">=" (the lower limit comes first)', low_sign)
    elif high_sign not in ("<", "<="):
        problems.expected((*at, 2), '"<" or "<="', high_sign)
    elif low >= high:
        problems.add(
            at, f"the lower limit {low} is not below the upper limit {high}" + ('; write ["=", …]' if low == high else "")
        )
    else:
        above, below = _BOUNDS[low_sign], _BOUNDS[high_sign]
        return lambda value: is_number(value) and above(value, low) and below(value, high)
    return None


def _cidr(argument: Any, at: Place, problems: Problems) -> Test | None:
    """In a block of IPv4 or IPv6 addresses; an IPv4 address mapped to IPv6 is in the blocks of both."""
    if not isinstance(argument, str) or not re.fullmatch(r"[^/]+/[0-9]{1,3}", argument):
        problems.expected(at, 'a block of addresses such as "10.0.0.0/8" or "2001:db8::/32"', argument)
        return None
    try:
        network = ipaddress.ip_network(argument, strict=False)
    except ValueError as error:
        problems.add(at, f"no block of addresses: {error}")
        return None

    def test(value: Any) -> bool:
        if not isinstance(value, str):
            return False
        try:
            address = ipaddress.ip_address(value)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return address in network or (mapped is not None and mapped in network)

    return test


def _keys_of(argument: Mapping[Any, Any]) -> str:
    return ", ".join(describe(key) for key in argument) or "none"
