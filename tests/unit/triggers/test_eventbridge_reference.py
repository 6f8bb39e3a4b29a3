"""Event patterns against a second interpreter of them, which is written to be read and not to be fast.

It shares nothing with the compiler. An event is taken apart into all its values, each with its path and the array elements it
is inside of; a pattern into its `$or`-free forms; then every way of picking a value for every field is tried.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.streams.match import MatchIndex
from headrace.triggers import EventPattern


def matches(pattern: dict[str, Any], event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    leaves = list(leaves_of(event, "", "", {}))
    return any(form_matches(form, leaves) for form in forms_of(pattern, ""))


def leaves_of(node: Any, path: str, place: str, inside: dict[str, int]) -> Any:
    """Yield `(path, value, {array: index})` for every value. An array is known by the place it is in."""
    if isinstance(node, dict):
        for name, child in node.items():
            yield from leaves_of(child, f"{path}.{name}" if place else name, f"{place}/{name}", inside)
    elif isinstance(node, list):
        for index, child in enumerate(node):
            deeper = {**inside, place: index} if isinstance(child, (dict, list)) else inside
            yield from leaves_of(child, path, f"{place}[{index}]", deeper)
    else:
        yield path, node, inside


def forms_of(pattern: dict[str, Any], prefix: str) -> list[list[tuple[str, list[Any]]]]:
    """All ways through the `$or`s, each a list of `(path, entries)`."""
    forms: list[list[tuple[str, list[Any]]]] = [[]]
    for name, wanted in pattern.items():
        if name == "$or":
            branches = [form for alternative in wanted for form in forms_of(alternative, prefix)]
        elif isinstance(wanted, dict):
            branches = forms_of(wanted, f"{prefix}{name}.")
        else:
            branches = [[(f"{prefix}{name}", wanted)]]
        forms = [form + branch for form in forms for branch in branches]
    return forms


def form_matches(form: list[tuple[str, list[Any]]], leaves: list[Any]) -> bool:
    picks: list[list[Any]] = []
    for path, entries in form:
        options: list[Any] = [
            inside for at, value, inside in leaves if at == path and any(entry_matches(entry, value) for entry in entries)
        ]
        if {"exists": False} in entries:
            options.append(path)  # stands for: there is no value at this path
        picks.append(options)
    return any(holds_together(pick, leaves) for pick in itertools.product(*picks))


def holds_together(pick: tuple[Any, ...], leaves: list[Any]) -> bool:
    chosen: dict[str, int] = {}
    for inside in pick:
        if isinstance(inside, dict):
            if any(chosen.get(array, index) != index for array, index in inside.items()):
                return False
            chosen |= inside
    absent = [path for path in pick if isinstance(path, str)]
    return not any(
        at in absent and all(chosen.get(array, index) == index for array, index in inside.items()) for at, _, inside in leaves
    )


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def entry_matches(entry: Any, value: Any) -> bool:
    if not isinstance(entry, dict):
        return (type(entry) is type(value) and entry == value) or (is_number(entry) and is_number(value) and entry == value)
    ((operator, wanted),) = entry.items()
    if operator == "exists":
        return bool(wanted)
    if operator == "anything-but":
        if isinstance(wanted, dict):
            ((inner, texts),) = wanted.items()
            return not any(entry_matches({inner: text}, value) for text in (texts if isinstance(texts, list) else [texts]))
        return not any(entry_matches(one, value) for one in (wanted if isinstance(wanted, list) else [wanted]))
    if operator == "numeric":
        if not is_number(value):
            return False
        compare = {
            "=": lambda limit: value == limit,
            "<": lambda limit: value < limit,
            "<=": lambda limit: value <= limit,
            ">": lambda limit: value > limit,
            ">=": lambda limit: value >= limit,
        }
        return all(compare[sign](limit) for sign, limit in zip(wanted[::2], wanted[1::2], strict=True))
    if not isinstance(value, str):
        return False
    if operator == "cidr":
        try:
            return ipaddress.ip_address(value) in ipaddress.ip_network(wanted, strict=False)
        except ValueError:
            return False
    if isinstance(wanted, dict):
        return entry_matches({operator: wanted["equals-ignore-case"].casefold()}, value.casefold())
    if operator == "prefix":
        return value[: len(wanted)] == wanted
    if operator == "suffix":
        return value[max(0, len(value) - len(wanted)) :] == wanted
    if operator == "equals-ignore-case":
        return value.casefold() == wanted.casefold()
    assert operator == "wildcard"
    regex = re.sub(
        r"\\[\\*]|\*|[^\\*]", lambda found: ".*" if found[0] == "*" else re.escape(found[0][-1]), wanted, flags=re.DOTALL
    )
    return re.fullmatch(regex, value, re.DOTALL) is not None


NAMES = ["a", "b", "c", "a.b"]
SCALARS = [None, True, False, 0, 1, 1.0, -2, 1.5, "", "a", "ab", "B", "ß", "x*y", "b\\", "1", "10.1.2.3", "2001:db8::1"]
TEXTS = ["a", "b", "ab", "A", "SS", "x", "1"]
WILDCARDS = ["*", "", "a*", "*b", "a*b", "x\\*y", "b\\\\", "*\\**", "*1*2*", "*ab*b"]
LIMITS = [["=", 1], [">", 0], ["<=", 1.5], [">=", -2, "<", 1]]
BLOCKS = ["10.0.0.0/8", "10.1.2.3/32", "0.0.0.0/0", "2001:db8::/32", "::/0"]


class Grammar:
    """Patterns and events by rules. From a seed of Hypothesis': drawing each of them from a strategy takes 100 times as long."""

    def __init__(self, random: Random, scalars: list[Any], names: list[str] = NAMES) -> None:
        self.random = random
        self.scalars = scalars
        self.names = names

    def pick(self, values: list[Any]) -> Any:
        return self.random.choice(values)

    def one_or_more(self, values: list[Any]) -> Any:
        return self.pick(values) if self.random.random() < 0.5 else [self.pick(values) for _ in range(self.random.randint(1, 3))]

    def some_names(self, least: int) -> list[str]:
        return [name for name in self.names if self.random.random() < 0.5] or self.names[:least]

    def entry(self) -> Any:
        name = self.pick(["", "", "", "prefix", "suffix", "equals-ignore-case", "wildcard", "numeric", "exists", "cidr", "not"])
        match name:
            case "":
                return self.pick(self.scalars)
            case "prefix" | "suffix":
                return {name: self.pick([self.pick(TEXTS), {"equals-ignore-case": self.pick(TEXTS)}])}
            case "not":
                inner = self.pick(["prefix", "suffix", "equals-ignore-case"])
                return {
                    "anything-but": self.pick(
                        [
                            self.one_or_more(TEXTS),
                            self.one_or_more([0, 1, 1.5]),
                            {inner: self.one_or_more(TEXTS)},
                            {"wildcard": self.one_or_more(WILDCARDS)},
                        ]
                    )
                }
        arguments = {
            "equals-ignore-case": TEXTS,
            "wildcard": WILDCARDS,
            "numeric": LIMITS,
            "exists": [True, False],
            "cidr": BLOCKS,
        }
        return {name: self.pick(arguments[name])}

    def pattern(self, depth: int = 2) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in self.some_names(1):
            deeper = depth > 0 and self.random.random() < 0.4
            fields[name] = self.pattern(depth - 1) if deeper else [self.entry() for _ in range(self.random.randint(1, 2))]
        if depth > 0 and self.random.random() < 0.3:
            fields["$or"] = [self.pattern(depth - 1) for _ in range(self.random.randint(2, 3))]
        return fields

    def value(self, depth: int) -> Any:
        kind = self.random.random() if depth > 0 else 0
        if kind < 0.5:
            return self.pick(self.scalars)
        if kind < 0.75:
            return [self.value(depth - 1) for _ in range(self.random.randint(0, 3))]
        return self.event(depth - 1)

    def event(self, depth: int = 3) -> dict[str, Any]:
        return {name: self.value(depth) for name in self.some_names(0)}


class Elements(Grammar):
    """Patterns and events of few values, all in arrays of objects: where it matters which element a field is in."""

    def __init__(self, random: Random) -> None:
        super().__init__(random, [0, 1], ["b", "c", "d"])

    def entry(self) -> Any:
        return self.pick([0, 1, {"exists": False}, {"exists": True}, {"anything-but": 1}])

    def pattern(self, depth: int = 2) -> dict[str, Any]:
        fields = super().pattern(depth)
        return {"a": fields} if depth == 2 else fields

    def event(self, depth: int = 3) -> dict[str, Any]:
        if depth < 3:
            return super().event(depth)
        return {"a": [self.pick([self.event(2), self.event(2), [self.event(1), 1]]) for _ in range(self.random.randint(1, 3))]}


SEEDS = st.integers(0, 2**64).map(Random)


@settings(deadline=None, max_examples=400)
@given(SEEDS)
def test_every_operator_means_what_the_reference_says(random: Random) -> None:
    """Any pattern matches any event exactly when the reference interpreter says so."""
    grammar = Grammar(random, SCALARS)
    pattern = grammar.pattern(grammar.pick([0, 1, 2]))
    compiled = EventPattern(pattern)
    for event in (grammar.event() for _ in range(10)):
        assert compiled.matches(event) == matches(pattern, event), (pattern, event)


@settings(deadline=None, max_examples=400)
@given(SEEDS)
def test_fields_in_an_array_match_in_one_element(random: Random) -> None:
    """Array consistency, `exists: false` and `$or` together, in arrays of objects of arrays."""
    grammar = Elements(random)
    pattern = grammar.pattern()
    compiled = EventPattern(pattern)
    for event in (grammar.event() for _ in range(10)):
        assert compiled.matches(event) == matches(pattern, event), (pattern, event)


@settings(deadline=None, max_examples=200)
@given(SEEDS)
def test_the_index_lets_every_match_through(random: Random) -> None:
    """What the index finds by the patterns' exact values contains every pattern that matches."""
    grammar = Grammar(random, ["a", 1, True, None])
    index: MatchIndex[int] = MatchIndex()
    compiled = [EventPattern(grammar.pattern(1)) for _ in range(8)]
    for number, pattern in enumerate(compiled):
        if (spec := pattern.exact_values()) is not None:
            index.add(number, spec)
    for event in (grammar.event() for _ in range(8)):
        matching = {number for number, pattern in enumerate(compiled) if number in index and pattern.matches(event)}
        assert matching <= set(index.match(event)), event
