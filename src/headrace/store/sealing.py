"""Encryption of what may hold secrets: the kwargs of triggers and the raw bytes of dead letters.

Sealed texts are ASCII or plain JSON behind a mark that says which, so that a store may get its first key later, and what was
stored before stays readable.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from headrace.connector import Message
from headrace.errors import ConfigError, SecretKeyMissing

_PLAIN = "plain:"
_FERNET = "fernet:"


class Sealer:
    """Seals with the first key, opens with any; without keys it seals nothing."""

    def __init__(self, secret_keys: Sequence[str] = ()) -> None:
        """Raises `ConfigError` for what is no Fernet key."""
        keys: list[Fernet] = []
        problems: list[str] = []
        for position, key in enumerate(secret_keys):
            try:
                keys.append(Fernet(key.strip()))
            except ValueError:
                problems.append(f"store.secret_keys[{position}]: expected a Fernet key, 32 bytes in url-safe base64")
        if problems:
            raise ConfigError(problems)
        self._fernet = MultiFernet(keys) if keys else None

    def seal(self, text: str) -> str:
        """Encrypt, where there is a key."""
        if self._fernet is None:
            return _PLAIN + text
        return _FERNET + self._fernet.encrypt(text.encode()).decode("ascii")

    def unseal(self, sealed: str) -> str:
        """Undo `seal`. Raises `SecretKeyMissing` when none of the keys opens it."""
        if (text := self.try_unseal(sealed)) is None:
            raise SecretKeyMissing(
                "it was stored encrypted, and none of store.secret_keys opens it: add the key it was stored with"
            )
        return text

    def try_unseal(self, sealed: str) -> str | None:
        """Undo `seal`; None when none of the keys opens it."""
        if sealed.startswith(_PLAIN):
            return sealed[len(_PLAIN) :]
        if self._fernet is None:
            return None
        try:
            return self._fernet.decrypt(sealed[len(_FERNET) :]).decode()
        except InvalidToken:
            return None


def pack_message(message: Message) -> str:
    """Write a message as text, with its bytes exactly as they were."""
    return json.dumps(
        {
            "value": _encode(message.value),
            "key": _encode(message.key),
            "headers": [[name, _encode(value)] for name, value in message.headers],
            "timestamp": message.timestamp,
            "source": message.source,
            "id": message.id,
            "delivery_count": message.delivery_count,
        }
    )


def unpack_message(text: str) -> Message:
    """Undo `pack_message`."""
    fields: dict[str, Any] = json.loads(text)
    fields["value"] = _decode(fields["value"])
    fields["key"] = _decode(fields["key"])
    fields["headers"] = tuple((name, _decode(value)) for name, value in fields["headers"])
    return Message(**fields)


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
