"""A stored event as a CloudEvents 1.0 event over HTTP, in the structured or the binary content mode.

Pure: from an event to `(headers, body)`. By the CloudEvents specification 1.0.2, its JSON format and its HTTP protocol
binding (https://github.com/cloudevents/spec/tree/v1.0.2/cloudevents, read 2026-11-30).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import quote

import orjson

from headrace.store import StoredEvent

Mode = Literal["structured", "binary"]

EVENT_TYPE: Final = "headrace.trigger.event"
"""The `type` attribute of every event."""

_HEADER_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What stands unencoded in a `ce-` header: printable ASCII but space, double quote and percent (HTTP binding, 3.1.3.2)."""


def attributes(event: StoredEvent) -> dict[str, str]:
    """The context attributes. `id` is the event's identity: the same each time the event is sent again, so that a receiver
    tells repeats by it alone. `time` is the message's, where the broker gave one, else when the event was stored."""
    where = f"streams/{event.stream}" if event.stream is not None else f"triggers/{event.trigger_id}"
    found = {
        "specversion": "1.0",
        "id": event.identity,
        "source": "/headrace/" + quote(where),
        "type": EVENT_TYPE,
        "datacontenttype": "application/json",
        "trigger": event.trigger_id,
    }
    if event.stream is not None:
        found["stream"] = event.stream
    if (time := _timestamp(event.published_at if event.published_at is not None else event.stored_at)) is not None:
        found["time"] = time
    return found


def encode(event: StoredEvent, mode: Mode) -> tuple[dict[str, str], bytes]:
    """The request's headers and body."""
    context: dict[str, Any] = attributes(event)
    if mode == "structured":
        return {"Content-Type": "application/cloudevents+json; charset=UTF-8"}, orjson.dumps({**context, "data": event.payload})
    headers = {"Content-Type": context.pop("datacontenttype")}
    headers |= {f"ce-{name}": quote(value, safe=_HEADER_SAFE) for name, value in context.items()}
    return headers, orjson.dumps(event.payload)


def _timestamp(seconds: float) -> str | None:
    """RFC 3339, or None for a moment outside the years 1 to 9999: whoever publishes sets it, and the attribute is optional."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None
