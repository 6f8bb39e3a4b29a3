"""Health, metrics and publishing over HTTP, served on the loop of `serve`.

Health is open to whoever can connect; `/metrics` and `/api` ask for the token where one is configured. Without a token
(on loopback only) a request with an `Origin` is refused: a web page in a browser on this machine must not publish.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog
import uvicorn
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.app.config import StreamConfig
from headrace.app.config.problems import nearest
from headrace.app.messages import Headers, new_message, parse_line
from headrace.connector import Message
from headrace.errors import HeadraceError, SourceMisconfigured, SourceUnavailable

log = structlog.stdlib.get_logger("headrace.http")

KEY_HEADER: Final = "headrace-key"
"""The request header that holds the message's key."""
HEADER_PREFIX: Final = "headrace-header-"
"""`Headrace-Header-Region: eu` gives the message a header `region`."""
BATCH_TYPE: Final = "application/x-ndjson"
"""The content type of a batch: one message a line, as `headrace publish --json-lines` takes them."""
RETRY_AFTER: Final = "5"


class Api:
    """The endpoints. `streams` and `unready` are asked at each request, so that a reloaded configuration counts at once;
    `refresh` is awaited before the metrics are read."""

    def __init__(
        self,
        *,
        streams: Callable[[], Mapping[str, StreamConfig]],
        unready: Callable[[], Sequence[str]],
        metrics: Collector,
        refresh: Callable[[], Awaitable[None]],
        token: SecretStr | None,
        max_body_bytes: int,
    ) -> None:
        self._streams = streams
        self._unready = unready
        self._metrics = metrics
        self._refresh = refresh
        self._token = None if token is None else token.get_secret_value().encode()
        self._max_body_bytes = max_body_bytes
        self.app = Starlette(
            routes=[
                Route("/health/live", self._live),
                Route("/health/ready", self._ready),
                Route("/metrics", self._scrape),
                Route("/api/streams/{name}/messages", self._publish, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _as_json},
        )

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        reasons = list(self._unready())
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def _scrape(self, request: Request) -> Response:
        self._authorize(request)
        await self._refresh()
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(self._metrics), headers={"content-type": content_type})

    async def _publish(self, request: Request) -> Response:
        """202 once the broker has the messages durably. After a 5xx some of a batch may have been published."""
        self._authorize(request)
        name = request.path_params["name"]
        streams = self._streams()
        if name not in streams:
            raise HTTPException(404, f"there is no stream {name!r}{nearest(name, streams)}")
        messages = _messages(request, await self._body(request))
        stream = streams[name]
        try:
            await stream.connector.publish(stream.connector_config, messages)
        except SourceUnavailable as error:
            raise HTTPException(503, str(error), {"retry-after": RETRY_AFTER}) from error
        except SourceMisconfigured as error:
            raise HTTPException(502, str(error)) from error
        except HeadraceError as error:
            raise HTTPException(400, str(error)) from error
        return JSONResponse({"published": len(messages)}, 202)

    def _authorize(self, request: Request) -> None:
        if self._token is None:
            if "origin" in request.headers:
                raise HTTPException(403, "requests from web pages need a token: configure http.token")
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Both as bytes: compare_digest takes no time that depends on where they differ, and refuses text beyond ASCII.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            raise HTTPException(401, "send the token as `Authorization: Bearer …`", {"www-authenticate": "Bearer"})

    async def _body(self, request: Request) -> bytes:
        too_large = HTTPException(413, f"the body is larger than http.max_body_bytes, {self._max_body_bytes}")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            raise too_large
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._max_body_bytes:
                    raise too_large
        except ClientDisconnect:
            raise HTTPException(400, "the request broke off") from None
        return bytes(body)


def _messages(request: Request, body: bytes) -> list[Message]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    key = request.headers.get(KEY_HEADER)
    headers: Headers = tuple(
        (name[len(HEADER_PREFIX) :], value.encode("latin-1"))
        for name, value in request.headers.items()
        if name.startswith(HEADER_PREFIX)
    )
    if content_type == BATCH_TYPE:
        if key is not None or headers:
            raise HTTPException(400, "in a batch each line has its own key and headers")
        return list(_batch(body))
    if content_type == "application/json":
        try:
            json.loads(body)
        except ValueError as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from error
    return [new_message(body, None if key is None else key.encode("latin-1"), headers)]


def _batch(body: bytes) -> Iterator[Message]:
    found = False
    for number, line in enumerate(body.splitlines(), 1):
        if not line.strip():
            continue
        found = True
        try:
            yield parse_line(line)
        except ValueError as error:
            raise HTTPException(400, f"line {number}: {error}; nothing was published") from error
    if not found:
        raise HTTPException(400, "the batch is empty")


async def _as_json(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are `serve`'s


class HttpServer:
    """A listening server in a task of this loop. Raises `OSError` when it cannot listen."""

    def __init__(self, app: Starlette, *, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host.strip("[]"), port), family=family, backlog=128)
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, server_header=False, ws="none")
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """`http://host:port`, as it listens."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """Serve from now on."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")

    async def stop(self, timeout: float) -> None:
        """Take no more connections, let requests end for `timeout` seconds, then break them off."""
        if self._task is None:
            self._socket.close()
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait((self._task,), timeout=timeout)
        if not done:
            self._server.force_exit = True
            log.warning("requests were broken off", seconds=timeout)
            await asyncio.wait((self._task,), timeout=1.0)
        self._socket.close()
