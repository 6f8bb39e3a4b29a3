"""Array consistency: the fields of a pattern must match in one and the same element of an array of objects.

A value's chain says which array elements it is inside of. Two values go together unless they are in different elements of one
array. Arrays are taken apart from the outside: which element, then, with what is left of the chains, the arrays in it. So the
work is in proportion to the values, not to the ways of combining them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from headrace.streams.fields import Steps

MAX_ARRAY_DEPTH: Final = 64
"""Arrays around a value whose consistency is looked at; deeper ones hold together anyway."""

Array: TypeAlias = "tuple[str | int, ...]"
"""An array, by its place in the document."""
Chain: TypeAlias = "tuple[tuple[Array, int], ...]"
"""The array elements that a value is inside of, outermost first: `(array, index)`."""


def placed_values(document: Mapping[str, Any], steps: Steps) -> Iterator[tuple[Any, Chain]]:
    """As `Field.values`, with the array elements each value is inside of. A value that is itself an element is in none of it."""
    pending: list[tuple[Any, Steps | None, Array, Chain]] = [(document, steps, (), ())]
    while pending:
        node, rest, place, chain = pending.pop()
        if isinstance(node, (list, tuple)):
            for index, element in enumerate(node):
                if isinstance(element, (list, tuple, dict, Mapping)):
                    if len(chain) < MAX_ARRAY_DEPTH:
                        pending.append((element, rest, (*place, index), (*chain, (place, index))))
                    else:
                        pending.append((element, rest, place, chain))
                elif rest is None:
                    yield element, chain
        elif isinstance(node, (dict, Mapping)):
            if rest is not None:
                pending.extend((node[name], after, (*place, name), chain) for name, after in rest if name in node)
        elif rest is None:
            yield node, chain


def agree(candidates: list[frozenset[Chain]], without: frozenset[Chain]) -> bool:
    """Whether one chain can be picked from each candidate so that no two are in different elements of one array, and each of
    the chains that are to be left out is in another element of some array than one that was picked."""
    if () in without:
        return False
    if not without:
        candidates = [chains for chains in candidates if () not in chains]
    return all(
        (len(together) == 1 and not left_out) or _agree_on_an_element(array, together, left_out)
        for array, together, left_out in _by_array(candidates, without)
    )


def _by_array(
    candidates: list[frozenset[Chain]], without: frozenset[Chain]
) -> list[tuple[Array, list[frozenset[Chain]], frozenset[Chain]]]:
    """Part a problem into those that have no outermost array in common, each with one of its arrays."""
    parts: list[tuple[set[Array], list[frozenset[Chain]]]] = [({array}, []) for array in {chain[0][0] for chain in without}]
    for chains in candidates:
        arrays = {chain[0][0] for chain in chains if chain}
        together = [chains]
        apart = []
        for part in parts:
            if part[0] & arrays:
                arrays |= part[0]
                together += part[1]
            else:
                apart.append(part)
        parts = [*apart, (arrays, together)]
    return [
        (next(iter(arrays)), together, frozenset(chain for chain in without if chain[0][0] in arrays))
        for arrays, together in parts
        if arrays
    ]


def _agree_on_an_element(array: Array, candidates: list[frozenset[Chain]], without: frozenset[Chain]) -> bool:
    inside = [_by_index(array, chains) for chains in candidates]
    outside = [frozenset(chain for chain in chains if not chain or chain[0][0] != array) for chains in candidates]
    left_out = _by_index(array, without)
    elsewhere = frozenset(chain for chain in without if chain[0][0] != array)
    if not left_out and all(outside) and agree(outside, elsewhere):
        return True  # nobody is in this array
    for index in {index for by_index in inside for index in by_index}:
        here = [by_index.get(index, frozenset()) for by_index in inside]
        choices = [chains | others for chains, others in zip(here, outside, strict=True)]
        if not all(choices):
            continue
        remaining = elsewhere | left_out.get(index, frozenset())
        # Somebody is in the element, or it would leave out nothing: each in turn, unless there is one who must be.
        if not all(outside):
            if agree(choices, remaining):
                return True
        elif any(
            agree([*choices[:number], chains, *choices[number + 1 :]], remaining) for number, chains in enumerate(here) if chains
        ):
            return True
    return False


def _by_index(array: Array, chains: frozenset[Chain]) -> dict[int, frozenset[Chain]]:
    """What is left of the chains that are in the array, by the element that they are in."""
    rests: dict[int, set[Chain]] = {}
    for chain in chains:
        if chain and chain[0][0] == array:
            rests.setdefault(chain[0][1], set()).add(chain[1:])
    return {index: frozenset(rest) for index, rest in rests.items()}
