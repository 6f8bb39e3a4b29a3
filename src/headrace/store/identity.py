"""The names by which stored things are known for ever: printable ASCII, injective, bounded in length.

A derived event is `trigger:message:index`, and `.gN` from generation 1 on. `message` is the message's id, or, where there is
none, a stand-in that begins with `~` and so is never the id of a message. Everything that would make such a name ambiguous
or unstorable (a NUL, a space, `%`, `~`, what is not ASCII) is percent-encoded, and what is too long for a database index
ends in its digest.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from urllib.parse import unquote

from headrace.store.model import Unit

MAX_LENGTH = 512
"""Characters of a folded text. PostgreSQL's index entries end at about 2700 bytes, two of these and a trigger's name fit."""

_UNSAFE = re.compile(r"[^!-$&-}]")
_IDENTITY = re.compile(r"(?P<trigger>[^:]+):(?P<message>.+):(?P<index>\d+)(?:\.g(?P<generation>\d+))?")


def fold(text: str) -> str:
    """Make a name of any text: equal for equal texts, different for different ones (beyond `MAX_LENGTH` by its SHA-256)."""
    folded = text if _UNSAFE.search(text) is None else _UNSAFE.sub(_percent, text)
    if len(folded) <= MAX_LENGTH:
        return folded
    return f"{folded[: MAX_LENGTH - 65]}~{hashlib.sha256(folded.encode()).hexdigest()}"


def _percent(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))


def message_key(unit: Unit) -> str:
    """Name what the unit is unique by, together with its trigger."""
    if unit.message_id is not None:
        return fold(unit.message_id)
    if unit.lease_token is None:
        return f"~raw:{uuid.uuid4().hex}"
    if len(unit.events) == 1 and unit.events[0].dedupe_key is not None:
        return f"~key:{fold(unit.events[0].dedupe_key)}"
    return f"~run:{unit.lease_token}.{unit.first_index}"


def event_identity(trigger_id: str, message_key: str, index: int, generation: int = 0) -> str:
    """Name a derived event."""
    raised = f".g{generation}" if generation else ""
    return f"{fold(trigger_id).replace(':', '%3A')}:{message_key}:{index}{raised}"


def parse_identity(identity: str) -> tuple[str, str, int, int] | None:
    """Undo `event_identity`: trigger id, message key, index, generation. None for what is no identity."""
    if (match := _IDENTITY.fullmatch(identity)) is None:
        return None
    return unquote(match["trigger"]), match["message"], int(match["index"]), int(match["generation"] or 0)
