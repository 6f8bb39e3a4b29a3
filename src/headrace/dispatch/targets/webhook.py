"""The `webhook` target: POST of a CloudEvents 1.0 event.

A status says what becomes of the event: 2xx delivered; 408, 429 and 5xx tried again, after `Retry-After` at the earliest; any
other is dead, redirects included, since following one would send the payload where nobody configured it. No answer (refused,
reset, too late) is tried again, which may send an event twice: the receiver knows it by its `id`.
"""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated, ClassVar, Final

import aiohttp
from pydantic import AnyHttpUrl, Field, SecretStr, field_validator, model_validator

from headrace.dispatch.targets.base import Target, TargetConfig
from headrace.dispatch.targets.cloudevents import Mode, encode
from headrace.errors import TargetError, TargetRejected
from headrace.store import StoredEvent

ANSWER_CHARS: Final = 200
"""What is kept of a response body."""
MAX_BODY_BYTES: Final = 64 * 2**10
"""A longer response body is not read to its end; its connection is closed instead of used again."""
BODY_SECONDS: Final = 1.0
"""How long a body may take once the status is known."""

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_OWN_HEADERS: Final = frozenset({"connection", "content-length", "content-type", "expect", "transfer-encoding"})
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ \t!-~]*[!-~])?")


class WebhookConfig(TargetConfig):
    """POST each event as a CloudEvents 1.0 event."""

    url: Annotated[AnyHttpUrl, Field(repr=False)]  # paths and queries of webhooks often are secrets
    """Where to send it, `http://` or `https://`."""
    mode: Mode = "structured"
    """`structured`: the event is a JSON document, with the payload under `data`. `binary`: the body is the payload and the
    attributes are `ce-` headers."""
    headers: dict[str, SecretStr] = Field(default={})
    """Further request headers."""
    token: SecretStr | None = None
    """Sent as `Authorization: Bearer …`."""

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower() in _OWN_HEADERS or name.lower().startswith("ce-"):
                raise ValueError(f"{name!r} is set by the webhook itself")
            if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
                raise ValueError(f"the value of {name!r} is empty or has characters that a header cannot carry")
        return headers

    @field_validator("token")
    @classmethod
    def _token_is_sendable(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not _HEADER_VALUE.fullmatch(token.get_secret_value()):
            raise ValueError("the token is empty or has characters that a header cannot carry")
        return token

    @model_validator(mode="after")
    def _one_authorization(self) -> WebhookConfig:
        if self.token is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("give `token` or an Authorization header, not both")
        return self


class WebhookTarget(Target):
    """Keeps one session with its connections alive. Opens it at the first delivery."""

    kind: ClassVar[str] = "webhook"

    def __init__(self, config: WebhookConfig) -> None:
        super().__init__(config)
        self._url = str(config.url)
        self._host = config.url.host
        self._mode: Mode = config.mode
        self._headers = {name.lower(): value.get_secret_value() for name, value in config.headers.items()}
        self._headers = {"user-agent": "headrace", "accept-encoding": "identity"} | self._headers
        if config.token is not None:
            self._headers["authorization"] = f"Bearer {config.token.get_secret_value()}"
        self._session: aiohttp.ClientSession | None = None

    async def deliver(self, event: StoredEvent) -> str:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self.config.max_concurrency),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=None),  # the dispatcher's applies
                auto_decompress=False,  # a compressed answer is cut like any other, never unfolded
            )
        headers, body = encode(event, self._mode)
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                return _judge(response, await _beginning(response))
        except (aiohttp.ClientError, OSError) as error:
            raise TargetError(f"{self._host}: {_reason(error)}") from None  # the cause's text may hold the URL

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def _judge(response: aiohttp.ClientResponse, body: str) -> str:
    """The answer of a delivery, or the error that says what to do with the event."""
    status = response.status
    answer = f"HTTP {status}" + (f": {body}" if body else "")
    if 200 <= status < 300:
        return answer
    if status in (408, 429) or status >= 500:
        raise TargetError(answer, retry_after=retry_after(response.headers.get("Retry-After"), time.time()))
    if 300 <= status < 400:
        raise TargetRejected(f"HTTP {status}: redirects are not followed; configure the URL it leads to")
    raise TargetRejected(answer)


async def _beginning(response: aiohttp.ClientResponse) -> str:
    """The beginning of the body, made printable. Reads on to an end that is near, so that the connection can be used again.

    A body that is slow, long or broken off changes nothing about the event: the status has said all.
    """
    kept, size = b"", 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while size < MAX_BODY_BYTES and (chunk := await response.content.readany()):
                size += len(chunk)
                kept += chunk[: 4 * ANSWER_CHARS - len(kept)]
    except (aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
        response.close()
    text = kept.decode("utf-8", "replace")[:ANSWER_CHARS]
    return "".join(character if character.isprintable() else " " for character in text).strip()


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds from `now` (epoch seconds) that a `Retry-After` header asks for: a number or an HTTP date (RFC 9110, 10.2.3).

    None for one that says neither: the backoff applies.
    """
    value = (value or "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # a year beyond all dates overflows
        return None
    if moment.tzinfo is None:  # "-0000": UTC of unknown origin
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now)


def _reason(error: Exception) -> str:
    """What went wrong, without the request: an aiohttp error may print the URL."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed without an answer"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.os_error.strerror or error.os_error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
