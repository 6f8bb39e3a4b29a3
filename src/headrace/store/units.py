"""From units to the rows of a group commit: all that can be done, and can fail, before the database is asked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import Unstorable
from headrace.store import encoding
from headrace.store.identity import fold, message_key
from headrace.store.model import DeadLetter, Unit
from headrace.store.sealing import Sealer, pack_message
from headrace.store.sql import EventRow, Group, UnitRow

Key = tuple[str, str]
"""Trigger id and message key: what a unit is unique by."""


@dataclass(slots=True)
class EncodedUnit:
    """A unit as rows, which a group only has to join."""

    unit: Unit
    key: Key
    row: UnitRow
    events: list[EventRow]
    dead_letter: Mapping[str, Any] | None
    size: int
    """Bytes of its content."""

    @property
    def rows(self) -> int:
        """How many rows it becomes."""
        return 1 + len(self.events)


def encode_unit(unit: Unit, sealer: Sealer, max_payload_bytes: int) -> EncodedUnit:
    """Encode it. Raises `Unstorable`, which says what of it cannot be stored."""
    trigger_id = _trigger_id(unit.trigger_id)
    message_id = message_key(unit)
    row = trigger_id, message_id, _text(unit.stream), _text(unit.lane), _time(unit.published_at)
    if unit.dead is not None:
        dead_letter = {"t": trigger_id, "m": message_id, **_dead_letter(unit.dead, sealer)}
        size = len(dead_letter["content"] or "") + len(dead_letter["traceback"] or "")
        return EncodedUnit(unit, (trigger_id, message_id), row, [], dead_letter, size)
    events: list[EventRow] = []
    size = 0
    for index, event in enumerate(unit.events):
        name = "payload" if len(unit.events) == 1 else f"payload {index}"
        payload = encoding.encode(event.payload, limit=max_payload_bytes, name=name)
        events.append((trigger_id, message_id, index, _dedupe_key(event.dedupe_key), payload))
        size += len(payload)
    return EncodedUnit(unit, (trigger_id, message_id), row, events, None, size)


def _trigger_id(trigger_id: str) -> str:
    """A registered one passes."""
    if not trigger_id.isprintable():
        raise Unstorable("the trigger's id has characters that cannot be printed")
    return trigger_id


def _text(text: str | None) -> str | None:
    return None if text is None else encoding.clean(text, 1000)


def _time(time: float | None) -> float | None:
    if time is None or (isinstance(time, float | int) and math.isfinite(time)):
        return time
    raise Unstorable(f"published_at is {time!r}, and must be a number of seconds")


def _dedupe_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str):
        raise Unstorable(f"dedupe_key is of type {type(key).__name__}, and must be a string")
    return fold(key)


def _dead_letter(dead: DeadLetter, sealer: Sealer) -> dict[str, Any]:
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
        units=[unit.row for unit in first.values()],
        events=[event for unit in first.values() for event in unit.events],
        dead_letters=[unit.dead_letter for unit in first.values() if unit.dead_letter is not None],
        attempts=[key for key in first if key in attempted] if attempted else [],
    )
