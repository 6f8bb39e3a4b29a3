"""The match index: which subscribers may want an event, found without asking each of them.

A subscriber declares `{dotted field: wanted values}`: an event may interest it if every field has one of its wanted values.
Subscribers that declare the same fields share a table from values to subscribers, so an event costs one look-up for each
distinct set of fields, however many subscribers there are. The answer may hold a subscriber too many (its filter looks
again), never one too few; an event that cannot be read goes to everybody.

Pure: no clock, no I/O. Read next: `fields.py`, how a field of an event is read.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import product
from typing import Any, Final, Generic, TypeVar

from headrace.streams.fields import MANY, MISSING, PLAIN, Field, value_key

S = TypeVar("S", bound=Hashable)

MAX_ENTRIES: Final = 1024
"""Combinations of values one subscriber may take in the index; its fields with the most values are left to its filter beyond."""


class _Bucket(Generic[S]):
    """The subscribers that want one combination of values, by the order in which they came."""

    __slots__ = ("_shared", "members")

    def __init__(self) -> None:
        self.members: dict[int, S] = {}
        self._shared: tuple[S, ...] | None = None

    def put(self, order: int, subscriber: S) -> None:
        self.members[order] = subscriber
        self._shared = None

    def drop(self, order: int) -> None:
        del self.members[order]
        self._shared = None

    @property
    def shared(self) -> tuple[S, ...]:
        """The members in order: one tuple for all events that ask."""
        if self._shared is None:
            self._shared = tuple(self.members.values())
        return self._shared


def _wanted_keys(field: Field, document: Mapping[str, Any], wanted: Mapping[Any, Any]) -> Collection[Any]:
    """The keys of the document's values at a field, those of them that are wanted."""
    value = field.one_value(document)
    if value is not MANY:
        return (value,) if value in wanted else ()
    keys = {value_key(value) for value in field.values(document) if value.__hash__ is not None}
    return {key for key in keys if key in wanted}


class _OneField(Generic[S]):
    """All subscribers that declared this one field."""

    __slots__ = ("_field", "buckets")

    def __init__(self, field: str) -> None:
        self._field = Field(field)
        self.buckets: dict[Any, _Bucket[S]] = {}

    def put(self, entries: Sequence[tuple[Any, ...]], order: int, subscriber: S) -> None:
        for (key,) in entries:
            self.buckets.setdefault(key, _Bucket()).put(order, subscriber)

    def drop(self, entries: Sequence[tuple[Any, ...]], order: int) -> None:
        for (key,) in entries:
            bucket = self.buckets[key]
            bucket.drop(order)
            if not bucket.members:
                del self.buckets[key]

    def find(self, document: Mapping[str, Any], found: list[_Bucket[S]]) -> None:
        """Append the buckets that the document matches."""
        value = self._field.one_value(document)
        if value is not MANY:
            if (bucket := self.buckets.get(value)) is not None:
                found.append(bucket)
        else:
            found.extend([self.buckets[key] for key in _wanted_keys(self._field, document, self.buckets)])


class _ManyFields(Generic[S]):
    """All subscribers that declared the same several fields, or none."""

    __slots__ = ("_fields", "_wanted", "buckets")

    def __init__(self, fields: tuple[str, ...]) -> None:
        self._fields = tuple(Field(field) for field in fields)
        self._wanted: tuple[dict[Any, int], ...] = tuple({} for _ in fields)  # by field: key -> entries that hold it
        self.buckets: dict[tuple[Any, ...], _Bucket[S]] = {}

    def put(self, entries: Sequence[tuple[Any, ...]], order: int, subscriber: S) -> None:
        for entry in entries:
            self.buckets.setdefault(entry, _Bucket()).put(order, subscriber)
            for wanted, key in zip(self._wanted, entry, strict=True):
                wanted[key] = wanted.get(key, 0) + 1

    def drop(self, entries: Sequence[tuple[Any, ...]], order: int) -> None:
        for entry in entries:
            bucket = self.buckets[entry]
            bucket.drop(order)
            if not bucket.members:
                del self.buckets[entry]
            for wanted, key in zip(self._wanted, entry, strict=True):
                wanted[key] -= 1
                if not wanted[key]:
                    del wanted[key]

    def find(self, document: Mapping[str, Any], found: list[_Bucket[S]]) -> None:
        """Append the buckets that the document matches."""
        readings: list[Collection[Any]] = []
        combinations = 1
        for field, wanted in zip(self._fields, self._wanted):  # noqa: B905 - of one length, and strict costs as much as the walk
            keys = _wanted_keys(field, document, wanted)
            if not keys:
                return
            combinations *= len(keys)
            readings.append(keys)
        if combinations <= len(self.buckets):
            found.extend(self.buckets[entry] for entry in product(*readings) if entry in self.buckets)
        else:  # an event with long arrays: there are fewer entries than combinations
            for entry, bucket in self.buckets.items():
                if all(key in keys for key, keys in zip(entry, readings, strict=True)):
                    found.append(bucket)


class MatchIndex(Generic[S]):
    """Finds the subscribers that may want an event. Pure and synchronous; a subscriber is any hashable object."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, ...], _OneField[S] | _ManyFields[S]] = {}
        self._plain: dict[str, _OneField[S]] = {}  # those of one undotted field: most of them, asked without a call
        self._places: dict[S, tuple[int, tuple[str, ...], list[tuple[Any, ...]]]] = {}
        self._everybody: _Bucket[S] = _Bucket()
        self._next_order = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, subscriber: object) -> bool:
        return subscriber in self._places

    @property
    def entries(self) -> int:
        """Combinations of values that are looked up, all subscribers together: what the index's memory grows with."""
        return sum(len(table.buckets) for tables in (self._plain, self._tables) for table in tables.values())

    def add(self, subscriber: S, spec: Mapping[str, Collection[Any]]) -> None:
        """Index a subscriber under its `shared_stream_match()`.

        An empty spec wants every event; a field without values, none that can be read. Raises `TypeError` for a spec that is
        not fields with collections of values (no objects, no arrays), `ValueError` for a subscriber that is indexed already.
        """
        if subscriber in self._places:
            raise ValueError(f"{subscriber!r} is in the match index already")
        wanted = _wanted_of(spec)
        while len(wanted) > 1 and _combinations(wanted) > MAX_ENTRIES:
            del wanted[max(wanted, key=lambda field: len(wanted[field]))]
        fields = tuple(sorted(wanted))
        entries = list(product(*(wanted[field] for field in fields)))
        order = self._next_order
        self._next_order += 1
        self._places[subscriber] = (order, fields, entries)
        self._everybody.put(order, subscriber)
        if entries:
            self._table(fields).put(entries, order, subscriber)

    def remove(self, subscriber: S) -> None:
        """Take a subscriber out; one that is not in the index is left alone."""
        place = self._places.pop(subscriber, None)
        if place is None:
            return
        order, fields, entries = place
        self._everybody.drop(order)
        if entries:
            table = self._tables.get(fields) or self._plain[fields[0]]
            table.drop(entries, order)
            if not table.buckets:
                self._tables.pop(fields, None) or self._plain.pop(fields[0])

    def match(self, raw: Any) -> Sequence[S]:
        """The subscribers that may want the event, each once, in the order in which they were added.

        `raw` is read through its `json()` if it has one, else as a mapping. Never raises: where that fails, or is no mapping,
        everybody may want it. The result is shared between events and is not to be changed.
        """
        found: list[_Bucket[S]] = []
        try:
            decode = getattr(raw, "json", None)
            document = raw if decode is None else decode()
            if document.__class__ is not dict and not isinstance(document, Mapping):
                return self._everybody.shared
            for name, table in self._plain.items():
                value = document.get(name, MISSING)
                if value.__class__ in PLAIN:
                    if (bucket := table.buckets.get(value)) is not None:
                        found.append(bucket)
                elif value is not MISSING:
                    table.find(document, found)
            for other in self._tables.values():
                other.find(document, found)
        except Exception:  # whatever a stranger's raw event raises when it is read: it is the filter's to judge
            return self._everybody.shared
        if not found:
            return ()
        if len(found) == 1:
            return found[0].shared
        members: dict[int, S] = {}
        for bucket in found:
            members.update(bucket.members)
        return tuple(members[order] for order in sorted(members))

    def _table(self, fields: tuple[str, ...]) -> _OneField[S] | _ManyFields[S]:
        if len(fields) == 1 and "." not in fields[0]:
            return self._plain.setdefault(fields[0], _OneField(fields[0]))
        if (table := self._tables.get(fields)) is None:
            table = self._tables[fields] = _OneField(fields[0]) if len(fields) == 1 else _ManyFields(fields)
        return table


def _wanted_of(spec: Mapping[str, Collection[Any]]) -> dict[str, set[Any]]:
    wanted: dict[str, set[Any]] = {}
    for field, values in spec.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Collection):
            raise TypeError(f"shared_stream_match: {field!r} wants a collection of values, found {type(values).__name__}")
        for value in values:
            if isinstance(value, (list, tuple, Mapping)) or value.__hash__ is None:
                raise TypeError(
                    f"shared_stream_match: a value of {field!r} is a {type(value).__name__}; only single values match"
                )
        wanted[field] = {value_key(value) for value in values}
    return wanted


def _combinations(wanted: Mapping[str, Collection[Any]]) -> int:
    count = 1
    for values in wanted.values():
        count *= len(values)
    return count
