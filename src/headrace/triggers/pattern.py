"""The trigger of a config's `match`: fires for every message whose JSON value an event pattern matches.

What it derives from a message is an object, the same on every redelivery:

- `value`: the decoded value;
- `key`: the message's key, null where it has none;
- `headers`: `{name: [values in order]}`, since a name may come more than once;
- `timestamp` (epoch seconds), `source` (topic, queue, subscription) and `id` of the message.

Bytes are text where they are UTF-8, else `{"base64": "…"}`. A raw event of another kind than `Message` derives `value` only.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Literal

from headrace.connector import Message
from headrace.errors import ConfigError
from headrace.streams.subscription import reject_shared_stream_event
from headrace.triggers.base import BaseEventTrigger, TriggerEvent
from headrace.triggers.eventbridge import EventPattern


class PatternTrigger(BaseEventTrigger):
    """A filter by an Amazon EventBridge event pattern (see `eventbridge.py`).

    `undecodable` says what becomes of an event that is not JSON: `no_match` moves past it, `reject` refuses it with the reason.
    Either way it is counted in `undecodable_count`. Raises `ConfigError` for a wrong pattern, every mistake at once.
    """

    def __init__(self, match: Mapping[str, Any], *, undecodable: Literal["no_match", "reject"] = "no_match") -> None:
        super().__init__()
        if undecodable not in ("no_match", "reject"):
            raise ConfigError([f"undecodable: expected 'no_match' or 'reject', found {undecodable!r}"])
        self.pattern = EventPattern(match)
        self.undecodable = undecodable
        self.undecodable_count = 0
        """Events that were not JSON since this instance was built."""
        self._match = copy.deepcopy(match)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {"match": copy.deepcopy(self._match), "undecodable": self.undecodable}

    def shared_stream_match(self) -> Mapping[str, Collection[Any]] | None:
        return self.pattern.exact_values()

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for raw in shared_stream:
            try:
                document = _decode(raw)
            except ValueError as error:
                self.undecodable_count += 1
                if self.undecodable == "reject":
                    reject_shared_stream_event(f"not JSON: {error}")
                continue
            if self.pattern.matches(document):
                yield TriggerEvent(_payload(raw, document))


def _decode(raw: Any) -> Any:
    """The document of a raw event. Raises `ValueError` where there is none."""
    decode = getattr(raw, "json", None)
    if decode is not None:
        return decode()
    if isinstance(raw, Mapping):
        return raw
    raise ValueError(f"a raw event of type {type(raw).__name__} has no json() and is no mapping")


def _payload(raw: Any, document: Any) -> dict[str, Any]:
    if not isinstance(raw, Message):
        return {"value": document}
    headers: dict[str, list[Any]] = {}
    for name, value in raw.headers:
        headers.setdefault(name, []).append(_text(value))
    return {
        "value": document,
        "key": _text(raw.key),
        "headers": headers,
        "timestamp": raw.timestamp,
        "source": raw.source,
        "id": raw.id,
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
