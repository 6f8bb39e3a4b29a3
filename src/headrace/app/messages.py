"""Messages as people write them: one JSON object a line, on standard input and over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import orjson

from headrace.connector import Message

Headers = tuple[tuple[str, bytes | None], ...]


def new_message(value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> Message:
    """A message to be published: the broker gives it its id, its source and its time."""
    return Message(value=value, key=key, headers=headers, id="", source="", timestamp=time.time())


def parse_line(line: bytes) -> Message:
    """A message from `{"value": …, "key": …, "headers": {…}}`, where only the value is required.

    A string is taken as it is, null as no value, anything else as its JSON. Raises `ValueError` that says what was expected.
    """
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or "value" not in data or data.keys() - {"value", "key", "headers"}:
        raise ValueError('expected {"value": …}, with "key" and "headers" if there are any')
    headers = data.get("headers") or {}
    if not isinstance(headers, Mapping):
        raise ValueError('"headers" is an object of names and values')
    return new_message(
        _bytes(data["value"]), _bytes(data.get("key")), tuple((name, _bytes(value)) for name, value in headers.items())
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else value.encode() if isinstance(value, str) else orjson.dumps(value)
