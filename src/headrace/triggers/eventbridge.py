"""Amazon EventBridge's event patterns, compiled once and matched against JSON documents.

A pattern has the shape of the documents it matches: objects of fields, and for each field the list of what it may be. All
fields must match; of a list, any entry; of `$or`, any alternative. A field is known by its path: `{"a": {"b": [1]}}` and
`{"a.b": [1]}` are one pattern, and match `{"a": {"b": 1}}` and `{"a.b": 1}` alike (`streams/fields.py`).

- A field that is an array matches by any of its elements; `anything-but` too asks for one element that is none of those named.
- `exists` looks for values: null and "" are values; an empty array, an object, and what is not there have none.
- Fields inside an array of objects must match in one and the same element (array consistency), and `exists: false` beside
  them says that this element has no such field, in whatever order they are written (EventBridge goes by the alphabet here:
  it sees only the elements of fields that come before); alone it says that no element has.
- Strings are compared character by character; what ignores case folds it as Unicode does. Numbers compare exactly, without
  EventBridge's limits of ±5e9 and six decimals.
- A field that is named outside and inside `$or` must meet both.
- `$or` is always the operator, never a field's name.

Pure. Read next: `comparisons.py` for the operators, `pattern.py` for the trigger.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from itertools import chain as concatenate
from itertools import product
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.streams.fields import MANY, MISSING, Field
from headrace.triggers.arrays import Chain, Need, agree, placed_values
from headrace.triggers.comparisons import (
    OPERATORS,
    Mistake,
    Place,
    Problems,
    Test,
    any_of,
    compile_comparison,
    describe,
    equals_one_of,
    example_of,
    is_exact,
)

MAX_COMBINATIONS: Final = 1000
"""Ways through the `$or`s of one pattern; EventBridge has the same limit."""


@dataclass(slots=True)
class _Condition:
    """One field's list."""

    field: Field
    admits: Test
    absent: bool
    """Whether the field may have no value (`exists: false`)."""
    values: tuple[Any, ...] | None
    """What the field must equal one of, if that is all the list says."""
    may_share_arrays: bool = False
    """Whether another field may be in the same array, so that the element matters."""

    def may_hold(self, document: Mapping[str, Any]) -> bool:
        """Whether the field matches, whatever the elements of arrays that the others match in."""
        value = self.field.one_value(document)
        if value is MISSING:
            return self.absent
        if value is not MANY:
            return self.admits(value)
        values = self.field.values(document)
        if any(map(self.admits, values)):
            return True
        return self.absent and (not values or (self.may_share_arrays and () not in self._chains(document)[1]))

    def is_in_array(self, document: Mapping[str, Any]) -> bool:
        """Whether the field may be in an array, and another one with it."""
        return self.may_share_arrays and self.field.one_value(document) is MANY

    def need(self, document: Mapping[str, Any]) -> Need:
        """Where in the document's arrays the field matches, and where its values are if it may have none."""
        admitted, all_values = self._chains(document)
        return Need(admitted, all_values if self.absent else None)

    def _chains(self, document: Mapping[str, Any]) -> tuple[frozenset[Chain], frozenset[Chain]]:
        placed = list(placed_values(document, self.field.steps))
        return frozenset(chain for value, chain in placed if self.admits(value)), frozenset(chain for _, chain in placed)


@dataclass(slots=True)
class _All:
    """Conditions that must all hold, and groups of alternatives of which one must."""

    conditions: list[_Condition] = dataclass_field(default_factory=list)
    groups: list[list[_All]] = dataclass_field(default_factory=list)

    def may_hold(self, document: Mapping[str, Any]) -> bool:
        for condition in self.conditions:
            if not condition.may_hold(document):
                return False
        return all(any(alternative.may_hold(document) for alternative in group) for group in self.groups)

    def ways(self, document: Mapping[str, Any]) -> Iterator[list[Need]]:
        """What the fields need, by every choice of alternatives that may hold."""
        needs = [condition.need(document) for condition in self.conditions if condition.is_in_array(document)]
        branches = [
            [way for alternative in group if alternative.may_hold(document) for way in alternative.ways(document)]
            for group in self.groups
        ]
        for choice in product(*branches):
            yield [*needs, *concatenate.from_iterable(choice)]

    def combinations(self) -> int:
        """How many `ways` there are at most."""
        ways = 1
        for group in self.groups:
            ways *= sum(alternative.combinations() for alternative in group)
        return ways

    def every_condition(self) -> Iterator[_Condition]:
        yield from self.conditions
        for group in self.groups:
            for alternative in group:
                yield from alternative.every_condition()

    def exact_values(self) -> dict[str, tuple[Any, ...]]:
        """The fields that must equal one of some values, whichever alternatives hold."""
        wanted: dict[str, tuple[Any, ...]] = {}
        for condition in self.conditions:
            if condition.values is not None:
                wanted.setdefault(condition.field.name, condition.values)
        for group in self.groups:
            first, *others = [alternative.exact_values() for alternative in group]
            for name in first:
                if name not in wanted and all(name in other for other in others):
                    wanted[name] = tuple(value for alternative in (first, *others) for value in alternative[name])
        return wanted


class PatternError(ConfigError):
    """A pattern is wrong. `mistakes` has the place and text of each; `problems`, a line that names the place as `match.a[0]`."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__([f"{_path(place)}: {text}" for place, text in mistakes])


class EventPattern:
    """A compiled event pattern.

    `pattern` is what its author wrote, decoded. Raises `PatternError` with every mistake in it. `warnings` holds what is
    allowed and probably not meant.
    """

    def __init__(self, pattern: Mapping[str, Any]) -> None:
        problems, warnings = Problems(), Problems()
        self._root = _All()
        _Parser(problems, warnings).read_fields(pattern, (), (), self._root)
        conditions = list(self._root.every_condition())
        roots = Counter(condition.field.name.split(".")[0] for condition in conditions)
        for condition in conditions:  # inside one array are only fields that begin with the same name
            condition.may_share_arrays = roots[condition.field.name.split(".")[0]] > 1
        if (combinations := self._root.combinations()) > MAX_COMBINATIONS:
            problems.add((), f"its $or lists make {combinations} combinations, the limit is {MAX_COMBINATIONS}")
        if problems:
            raise PatternError(problems)
        self.warnings = tuple(warnings)
        self._may_share_arrays = any(condition.may_share_arrays for condition in conditions)

    def matches(self, document: Any) -> bool:
        """Whether the pattern matches a decoded JSON document; what is no object matches nothing."""
        if not isinstance(document, (dict, Mapping)) or not self._root.may_hold(document):
            return False
        return not self._may_share_arrays or any(agree(way) for way in self._root.ways(document))

    def exact_values(self) -> dict[str, tuple[Any, ...]] | None:
        """`{dotted field: values}` that a document must have to match (see `BaseEventTrigger.shared_stream_match`), or None."""
        return self._root.exact_values() or None


class _Parser:
    """Reads a pattern into conditions, and goes on after a mistake so as to tell them all."""

    def __init__(self, problems: Problems, warnings: Problems) -> None:
        self._problems = problems
        self._warnings = warnings

    def read_fields(self, pattern: Any, names: tuple[str, ...], at: Place, into: _All) -> None:
        if not isinstance(pattern, Mapping) or not pattern:
            self._problems.expected(at, "an object of fields", pattern)
            return
        for name, wanted in pattern.items():
            if not isinstance(name, str):
                self._problems.expected(at, "field names that are strings", name, " (write it in quotes)")
                continue
            place = (*at, name)
            if name == "$or":
                self._read_alternatives(wanted, names, place, into)
            elif isinstance(wanted, Mapping):
                self.read_fields(wanted, (*names, name), place, into)
            elif isinstance(wanted, (list, tuple)):
                if name in OPERATORS and names:
                    self._warnings.add(place, f"a field of this name is looked for; the operator is written {example_of(name)}")
                self._read_condition(wanted, ".".join((*names, name)), place, into)
            else:
                hint = f"; the operator is written {example_of(name)}" if name in OPERATORS else f"; write [{describe(wanted)}]"
                self._problems.expected(place, "a list of values or an object of fields", wanted, hint)

    def _read_alternatives(self, alternatives: Any, names: tuple[str, ...], at: Place, into: _All) -> None:
        if not isinstance(alternatives, (list, tuple)) or len(alternatives) < 2:
            self._problems.expected(at, "a list of at least two objects of fields", alternatives)
            return
        group = []
        for number, alternative in enumerate(alternatives):
            branch = _All()
            self.read_fields(alternative, names, (*at, number), branch)
            group.append(branch)
        into.groups.append(group)

    def _read_condition(self, entries: Collection[Any], name: str, at: Place, into: _All) -> None:
        if not entries:
            self._problems.expected(at, "a list of values", entries)
            return
        values: list[Any] = []
        tests: list[Test] = []
        absent = False
        for number, entry in enumerate(entries):
            place = (*at, number)
            if is_exact(entry):
                values.append(entry)
            elif (found := self._operator_of(entry, place)) is None:
                continue
            elif found[0] != "exists":
                if (test := compile_comparison(*found, place, self._problems)) is not None:
                    tests.append(test)
            elif not isinstance(found[1], bool):
                self._problems.expected((*place, "exists"), "true or false", found[1])
            elif found[1]:
                tests.append(_exists)
            else:
                absent = True
        exact_only = bool(values) and not tests and not absent
        if values:
            tests.insert(0, equals_one_of(values))
        into.conditions.append(_Condition(Field(name), any_of(tests), absent, tuple(values) if exact_only else None))

    def _operator_of(self, entry: Any, place: Place) -> tuple[str, Any] | None:
        if not isinstance(entry, Mapping):
            kinds = 'a string, number, true, false, null or an operator such as {"prefix": "x"}'
            self._problems.expected(place, kinds, entry)
            return None
        if len(entry) != 1:
            self._problems.expected(place, "an object of one operator", entry, f" of {len(entry)}" if entry else "")
            return None
        ((operator, argument),) = entry.items()
        if not isinstance(operator, str):
            self._problems.expected(place, f"one of the operators {', '.join(OPERATORS)}", operator)
            return None
        return operator, argument


def _exists(value: Any) -> bool:
    return True


def _path(place: Place) -> str:
    path = "match"
    for step in place:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if re.fullmatch(r"[\w$-]+", step) else f"[{json.dumps(step, ensure_ascii=False)}]"
    return path
