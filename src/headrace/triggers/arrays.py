"""Array consistency: the fields of a pattern must match in one and the same element of an array of objects.

A value's chain says which array elements it is inside of. Two values go together unless they are in different elements of one
array. Arrays are taken apart from the outside: which element, then, with what is left of the chains, the arrays in it. So the
work is in proportion to the values, not to the ways of combining them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

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


class Need(NamedTuple):
    """What one field needs: to have its value at one of the `chains`; or, unless `without` is None, to have none.

    It has none if each of the chains in `without`, which are those of all its values, is in another element of some array than
    the one in which other fields have their values.
    """

    chains: frozenset[Chain]
    without: frozenset[Chain] | None = None


_FREE: Final[frozenset[Chain]] = frozenset({()})
_NOWHERE: Final[frozenset[Chain]] = frozenset()


def agree(needs: Sequence[Need]) -> bool:
    """Whether all needs can be met together: no two values in different elements of one array."""
    needs = [_simplify(need) for need in needs]
    if any(not chains and without is None for chains, without in needs):
        return False
    if all(without is None for _, without in needs):  # nobody gains by where another one is
        needs = [need for need in needs if () not in need.chains]
    return all(_agree_on_an_element(array, together) for array, together in _by_array(needs))


def _simplify(need: Need) -> Need:
    chains, without = need
    if without is None or () in without or () in chains:  # none is impossible, or never better than the value outside of all
        return Need(chains)
    if not without:  # none already: a value is no longer needed, and still possible
        return Need(chains | _FREE)
    return need


def _by_array(needs: Sequence[Need]) -> list[tuple[Array, list[Need]]]:
    """Part needs into groups that have no outermost array in common, each with one of its arrays."""
    groups: list[tuple[set[Array], list[Need]]] = []
    for need in needs:
        arrays = {chain[0][0] for chain in need.chains | (need.without or _NOWHERE) if chain}
        together = [need]
        apart = []
        for group in groups:
            if group[0] & arrays:
                arrays |= group[0]
                together += group[1]
            else:
                apart.append(group)
        groups = [*apart, (arrays, together)]
    return [(next(iter(arrays)), together) for arrays, together in groups if arrays]


def _agree_on_an_element(array: Array, needs: Sequence[Need]) -> bool:
    if len(needs) == 1 and needs[0].chains:
        return True
    parted = [_InArray.of(array, need) for need in needs]
    if agree([need.elsewhere() for need in parted]):
        return True
    # Somebody has to be in an element for it to leave others out: all who can only be in this array, else each in turn.
    if bound := [need.chains.keys() for need in parted if need.without is None and not need.other_chains]:
        return any(agree([need.at(index) for need in parted]) for index in set(bound[0]).intersection(*bound[1:]))
    for index in {index for need in parted for index in need.chains}:
        here = [need.at(index) for need in parted]
        for number, need in enumerate(parted):
            if index in need.chains and agree([*here[:number], Need(need.chains[index]), *here[number + 1 :]]):
                return True
    return False


class _InArray(NamedTuple):
    """A need, parted at an outermost array: what is in it, by element and without it in the chains, and what is not."""

    chains: dict[int, frozenset[Chain]]
    other_chains: frozenset[Chain]
    without: dict[int, frozenset[Chain]] | None
    other_without: frozenset[Chain]

    @classmethod
    def of(cls, array: Array, need: Need) -> _InArray:
        chains, others = _part(array, need.chains)
        if need.without is None:
            return cls(chains, others, None, _NOWHERE)
        return cls(chains, others, *_part(array, need.without))

    def elsewhere(self) -> Need:
        """What is needed if nobody is in the array: it leaves nothing out."""
        return Need(self.other_chains, None if self.without is None or self.without else self.other_without)

    def at(self, index: int) -> Need:
        """What is needed if somebody is in this element: what is in other elements is left out."""
        without = None if self.without is None else self.without.get(index, _NOWHERE) | self.other_without
        return Need(self.chains.get(index, _NOWHERE) | self.other_chains, without)


def _part(array: Array, chains: frozenset[Chain]) -> tuple[dict[int, frozenset[Chain]], frozenset[Chain]]:
    inside: dict[int, set[Chain]] = {}
    others: set[Chain] = set()
    for chain in chains:
        if chain and chain[0][0] == array:
            inside.setdefault(chain[0][1], set()).add(chain[1:])
        else:
            others.add(chain)
    return {index: frozenset(rest) for index, rest in inside.items()}, frozenset(others)
