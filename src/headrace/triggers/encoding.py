"""The keyword arguments of triggers as JSON, and back.

What JSON has is written as it is. The rest is written as `{"$type": "datetime/1", "value": …}`, the kind with the version of
its form, so that what was stored is read by later versions, and what a later one stored is refused by its key:

tuple, set, frozenset · bytes · datetime (with its zone's name), date, time, timedelta, ZoneInfo · Decimal, UUID · NaN and the
infinities · integers beyond 64 bits · dicts with keys that are no strings, or with a key `$type`.

Members of enums that are strings or numbers are written as those. Anything else is refused: `serialize()` has to return what
can be stored, and an import path in stored data would be code to run.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from headrace.errors import ConfigError

_TAG: Final = "$type"
_MAX_DEPTH: Final = 100


def encode_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as JSON. Raises `ConfigError` with a line for each value that cannot be stored, by its key."""
    problems: list[str] = []
    encoded = {name: _encode(value, f"kwargs.{name}", problems, 0) for name, value in kwargs.items()}
    if problems:
        raise ConfigError(problems)
    return encoded


def decode_kwargs(data: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments again, from what `encode_kwargs` gave. Raises `ConfigError` with a line for each that cannot be read."""
    problems: list[str] = []
    decoded = {name: _decode(value, f"kwargs.{name}", problems) for name, value in data.items()}
    if problems:
        raise ConfigError(problems)
    return decoded


def _encode(value: Any, where: str, problems: list[str], depth: int) -> Any:
    if isinstance(value, Enum) and isinstance(value, (str, int, float)):
        value = value.value
    if value is None or isinstance(value, (bool, str)):
        if isinstance(value, str) and not _is_text(value):
            problems.append(f"{where}: a string that is no text (it has half a surrogate pair)")
        return value
    if depth > _MAX_DEPTH:
        problems.append(f"{where}: nested deeper than {_MAX_DEPTH}, or in itself")
        return None
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else _tagged("int", str(int(value)))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _tagged("float", str(float(value)))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_encode(item, f"{where}[{number}]", problems, depth + 1) for number, item in enumerate(value)]
        if isinstance(value, list):
            return items
        if isinstance(value, tuple):
            return _tagged("tuple", items)
        items.sort(key=lambda item: json.dumps(item, sort_keys=True))  # equal sets are written equal
        return _tagged("set" if isinstance(value, set) else "frozenset", items)
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, problems, depth)
    for kind, (python_type, write, _) in _FORMS.items():
        if isinstance(value, python_type):
            return _tagged(kind, write(value))
    problems.append(f"{where}: a {_type_name(value)} cannot be stored; serialize() has to return plain data")
    return None


def _encode_mapping(value: Mapping[Any, Any], where: str, problems: list[str], depth: int) -> Any:
    items = {key: _encode(item, f"{where}[{key!r}]", problems, depth + 1) for key, item in value.items()}
    if all(isinstance(key, str) and _is_text(key) and not isinstance(key, Enum) for key in items) and _TAG not in items:
        return items
    return _tagged("dict", [[_encode(key, f"{where}: its key", problems, depth + 1), item] for key, item in items.items()])


def _decode(value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(value, list):
        return [_decode(item, f"{where}[{number}]", problems) for number, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _decode(item, f"{where}[{key!r}]", problems) for key, item in value.items()}
    tag, content = value[_TAG], value.get("value")
    kind, _, version = str(tag).partition("/")
    if version != "1" or kind not in _READERS:
        problems.append(f"{where}: stored as {tag!r}, which this version of Headrace does not know; a later one wrote it?")
        return None
    if kind in ("tuple", "set", "frozenset", "dict") and isinstance(content, list):
        content = [_decode(item, f"{where}[{number}]", problems) for number, item in enumerate(content)]
    try:
        return _READERS[kind](content)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        problems.append(f"{where}: stored as {tag!r}, and no such value: {error}")
        return None


def _tagged(kind: str, content: Any) -> dict[str, Any]:
    return {_TAG: f"{kind}/1", "value": content}


def _is_text(value: str) -> bool:
    return re.search("[\ud800-\udfff]", value) is None


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _write_datetime(value: datetime) -> Any:
    zone = getattr(value.tzinfo, "key", None)
    return {"at": value.isoformat(), "zone": zone} if isinstance(zone, str) else value.isoformat()


def _read_datetime(content: Any) -> datetime:
    if isinstance(content, dict):
        return datetime.fromisoformat(content["at"]).astimezone(ZoneInfo(content["zone"]))
    return datetime.fromisoformat(content)


_Form = tuple[type, Callable[[Any], Any], Callable[[Any], Any]]
_FORMS: Final[Mapping[str, _Form]] = {  # a datetime is a date: the order matters
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), lambda content: base64.b64decode(content, validate=True)),
    "datetime": (datetime, _write_datetime, _read_datetime),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
    "timedelta": (
        timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda content: timedelta(*content),
    ),
    "zone": (ZoneInfo, str, ZoneInfo),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "int": int,
    "float": float,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    **{kind: read for kind, (_, _, read) in _FORMS.items()},
}
