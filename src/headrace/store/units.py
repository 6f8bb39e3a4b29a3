"""From units to the documents of a group commit: all that can be done, and can fail, before the database is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson

from headrace.errors import Unstorable
from headrace.store import encoding
from headrace.store.identity import fold, message_key
from headrace.store.model import DeadLetter, Unit
from headrace.store.sealing import Sealer, pack_message
from headrace.store.sql import Group

Key = tuple[str, str]
"""Trigger id and message key: what a unit is unique by."""


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """A unit as JSON objects, which a group only has to join."""

    unit: Unit
    key: Key
    row: bytes
    events: tuple[bytes, ...]
    dead_letter: bytes | None
    size: int
    """Bytes of it all."""

    @property
    def rows(self) -> int:
        """How many rows it becomes."""
        return 1 + len(self.events)


def encode_unit(unit: Unit, sealer: Sealer, max_payload_bytes: int) -> EncodedUnit:
    """Encode it. Raises `Unstorable`, which says what of it cannot be stored."""
    if "\0" in unit.trigger_id:
        raise Unstorable("the trigger's id has a NUL character")
    key = unit.trigger_id, message_key(unit)
    identity = {"t": key[0], "m": key[1]}
    try:
        row = orjson.dumps({**identity, "s": _text(unit.stream), "l": _text(unit.lane), "p": unit.published_at})
        events = tuple(
            orjson.dumps({**identity, "i": index, "k": _key(event.dedupe_key), "d": payload, "z": len(payload)})
            for index, event in enumerate(unit.events if unit.dead is None else ())
            for payload in (encoding.encode(event.payload, limit=max_payload_bytes, name=_name(unit, index)),)
        )
        dead_letter = None if unit.dead is None else orjson.dumps(identity | _dead_letter(unit.dead, sealer))
    except TypeError as error:  # of orjson: not a payload, but what is around it
        raise Unstorable(f"the unit's own fields cannot be stored: {error}") from None
    size = len(row) + sum(map(len, events)) + len(dead_letter or b"")
    return EncodedUnit(unit, key, row, events, dead_letter, size)


def _name(unit: Unit, index: int) -> str:
    return "payload" if len(unit.events) == 1 else f"payload {index}"


def _text(text: str | None) -> str | None:
    return None if text is None else encoding.clean(text, 1000)


def _key(dedupe_key: str | None) -> str | None:
    if dedupe_key is None:
        return None
    if not isinstance(dedupe_key, str):
        raise Unstorable(f"dedupe_key is of type {type(dedupe_key).__name__}, and must be a string")
    return fold(dedupe_key)


def _dead_letter(dead: DeadLetter, sealer: Sealer) -> dict[str, object]:
    message = dead.message
    return {
        "cause": dead.cause,
        "reason": encoding.clean(dead.reason, 4000),
        "traceback": None if dead.traceback is None else encoding.clean(dead.traceback, 64_000, keep_end=True),
        "attempts": dead.attempts,
        "source": None if message is None else _text(message.source),
        "size": 0 if message is None else message.byte_size,
        "content": None if message is None else sealer.seal(pack_message(message)),
    }


def group_of(units: Sequence[EncodedUnit], attempted: Collection[Key]) -> Group:
    """Join units into a group; of two with one key, the first. `attempted`: keys that may have filter attempts to clear."""
    first: dict[Key, EncodedUnit] = {}
    for unit in units:
        first.setdefault(unit.key, unit)
    return Group(
        units=_array([unit.row for unit in first.values()]),
        events=_array([event for unit in first.values() for event in unit.events]),
        dead_letters=_array_or_none([unit.dead_letter for unit in first.values() if unit.dead_letter is not None]),
        attempts=_array_or_none([orjson.dumps({"t": key[0], "m": key[1]}) for key in first if key in attempted]),
    )


def _array(objects: Sequence[bytes]) -> str:
    return (b"[" + b",".join(objects) + b"]").decode()


def _array_or_none(objects: Sequence[bytes]) -> str | None:
    return _array(objects) if objects else None
