"""How the fields of a JSON document are read and compared, for the match index and for event patterns alike.

The rules are Amazon EventBridge's. `a.b` is the field `b` of the object `a`, and also a field whose name is `a.b`, since both
are written the same. An array stands for its elements, at any depth; an object is no value. Values compare as JSON has them:
1 equals 1.0, and neither equals true or "1"; null is a value, a missing field has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Steps: TypeAlias = "tuple[tuple[str, Steps | None], ...]"
"""Every way to walk a dotted field: `(name, the steps after it, or None at its end)`."""

MISSING: Final = object()
"""The document has no value at this field, as far as the plain walk can tell; it is no key of anything."""
MANY: Final = object()
"""The plain walk cannot tell: there are arrays, names with dots, or objects that are no `dict`."""
PLAIN: Final = frozenset({str, int, float, type(None)})
"""Types of values that are their own keys."""

_TRUE: Final = object()
_FALSE: Final = object()


def value_key(value: Any) -> Any:
    """What a value is looked up by: itself, except that true and false are not 1 and 0."""
    return (_TRUE if value else _FALSE) if value.__class__ is bool else value


class Field:
    """A field, by its dotted name, compiled to be read from many documents."""

    __slots__ = ("_walk", "name", "steps")

    def __init__(self, name: str) -> None:
        names = name.split(".")
        self.name = name
        self.steps = _steps(names)
        # The plain walk: each name, and the names with dots in them that would have to be looked into as well.
        self._walk = [(names[at], [".".join(names[at:end]) for end in range(at + 2, len(names) + 1)]) for at in range(len(names))]

    def one_value(self, document: Mapping[str, Any]) -> Any:
        """The only value here (of a `PLAIN` type), `MISSING`, or `MANY` where it takes `values` to tell. The fast way."""
        node: Any = document
        for name, rivals in self._walk:
            if node.__class__ is not dict:
                return MISSING if node is MISSING or node.__class__ in PLAIN else MANY
            for rival in rivals:
                if rival in node:
                    return MANY
            node = node.get(name, MISSING)
        return node if node is MISSING or node.__class__ in PLAIN else MANY

    def values(self, document: Mapping[str, Any]) -> list[Any]:
        """All values here, in no particular order, repeats included."""
        found: list[Any] = []
        pending: list[tuple[Any, Steps | None]] = [(document, self.steps)]  # a stack: arrays nest deeper than Python recurses
        while pending:
            node, rest = pending.pop()
            if isinstance(node, (list, tuple)):
                pending.extend((element, rest) for element in node)
            elif isinstance(node, (dict, Mapping)):
                if rest is not None:
                    pending.extend((node[name], after) for name, after in rest if name in node)
            elif rest is None:
                found.append(node)
        return found


def _steps(names: list[str]) -> Steps:
    suffixes: list[Steps | None] = [None]  # of the last 0, 1, 2 … names
    for start in range(len(names) - 1, -1, -1):
        ends = range(start + 1, len(names) + 1)
        suffixes.append(tuple((".".join(names[start:end]), suffixes[len(names) - end]) for end in ends))
    whole = suffixes[-1]
    assert whole is not None  # a split has at least one name
    return whole
