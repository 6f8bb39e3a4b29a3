"""A webhook receiver that answers as it is told, byte for byte, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

Answer = Callable[["Request"], Awaitable[None]]


@dataclass
class Request:
    """One request as it was received, and the means to answer it."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    writer: asyncio.StreamWriter

    async def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def drop(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


class Receiver:
    """Answers each request with `behave`, 200 until told otherwise; keeps what it received."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.behave: Answer = lambda request: request.answer(200)
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/orders?key=secret-key"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for handler in self._handlers:
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)
        self.connections += 1
        connection = self.connections
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.is_closing():
                    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                    headers = dict(line.split(": ", 1) for line in head[1:] if line)
                    body = await reader.readexactly(int(headers["Content-Length"]))
                    request = Request(head[0], headers, body, connection, writer)
                    self.requests.append(request)
                    await self.behave(request)
        finally:
            writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    await receiver.start()
    yield receiver
    await receiver.stop()
