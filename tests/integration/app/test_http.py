"""The HTTP endpoints on a real socket."""

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from pydantic import BaseModel, SecretStr

from headrace.app.config import StreamConfig
from headrace.app.config.model import StreamSettings
from headrace.app.http import Api, HttpServer
from headrace.connector import Connector, Message
from headrace.errors import SourceMisconfigured, SourceUnavailable
from headrace.streams.contract import Capabilities, SharedStreamProducer


class Kept(BaseModel):
    pass


class Keeper(Connector):
    """Keeps what is published, or raises what it is told to."""

    name = "keeper"
    Config = Kept
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.error: Exception | None = None

    def create_producer(self, config: Any) -> SharedStreamProducer:
        raise NotImplementedError

    async def publish(self, config: Any, messages: Sequence[Message]) -> None:
        if self.error is not None:
            raise self.error
        self.published += messages


class Served:
    def __init__(self) -> None:
        self.keeper = Keeper()
        self.reasons: list[str] = []
        self.registry = CollectorRegistry()
        self.things = Counter("headrace_things", "Things.", registry=self.registry)
        self.things.inc(2)

    async def refresh(self) -> None:
        self.things.inc()

    @asynccontextmanager
    async def client(self, token: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        stream = StreamConfig("orders", self.keeper, "keeper", Kept(), StreamSettings(), "no_match", True)
        api = Api(
            streams=lambda: {"orders": stream},
            unready=lambda: self.reasons,
            metrics=self.registry,
            refresh=self.refresh,
            token=None if token is None else SecretStr(token),
            max_body_bytes=1000,
        )
        server = HttpServer(api.app, host="127.0.0.1", port=0)
        server.start()
        try:
            async with aiohttp.ClientSession(server.address) as session:
                yield session
        finally:
            await server.stop(1.0)


@pytest.fixture
def served() -> Served:
    return Served()


async def post(session: aiohttp.ClientSession, data: bytes, type: str = "application/json", **headers: str) -> tuple[int, Any]:
    headers = {name.replace("_", "-"): value for name, value in headers.items()} | {"content-type": type}
    async with session.post("/api/streams/orders/messages", data=data, headers=headers) as response:
        return response.status, await response.json()


async def test_a_message_is_accepted_once_it_is_durable(served: Served) -> None:
    """The body is the value, byte for byte; headers give the key and the message's own headers."""
    async with served.client() as session:
        status, answer = await post(session, b'{"a":  1}', headrace_key="k", headrace_header_region="eu")
    assert (status, answer) == (202, {"published": 1})
    (message,) = served.keeper.published
    assert (message.value, message.key, message.headers) == (b'{"a":  1}', b"k", (("region", b"eu"),))


async def test_a_batch_is_one_message_a_line(served: Served) -> None:
    """Each with its key and headers; a wrong line publishes nothing."""
    lines = b'{"value": {"a": 1}, "key": "x", "headers": {"h": "1"}}\n\n{"value": "text"}\n{"value": null, "key": "gone"}\n'
    async with served.client() as session:
        assert await post(session, lines, "application/x-ndjson") == (202, {"published": 3})
        status, answer = await post(session, lines + b'{"vlaue": 1}\n', "application/x-ndjson")
        assert (status, "line 5: expected" in answer["error"]) == (400, True)
        assert (await post(session, b"\n", "application/x-ndjson"))[0] == 400
        assert (await post(session, lines, "application/x-ndjson", headrace_key="k"))[0] == 400
    assert [(message.value, message.key) for message in served.keeper.published] == [
        (b'{"a":1}', b"x"),
        (b"text", None),
        (None, b"gone"),
    ]


async def test_bytes_are_taken_as_they_are(served: Served) -> None:
    """What is not declared as JSON is not looked at."""
    async with served.client() as session:
        assert (await post(session, b"\xff\x00", "application/octet-stream"))[0] == 202
    assert served.keeper.published[0].value == b"\xff\x00"


async def test_wrong_requests_say_what_is_wrong(served: Served) -> None:
    """400 for what is not JSON, 404 for an unknown stream with the nearest name, 405, 413 with and without a length."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    async with served.client() as session:
        assert "not JSON" in (await post(session, b"{"))[1]["error"]
        async with session.post("/api/streams/order/messages", data=b"{}") as response:
            assert (response.status, await response.json()) == (
                404,
                {"error": "there is no stream 'order'; did you mean 'orders'?"},
            )
        async with session.get("/api/streams/orders/messages") as response:
            assert response.status == 405
        assert (await post(session, b"x" * 1001, "text/plain"))[0] == 413
        async with session.post("/api/streams/orders/messages", data=endless()) as response:
            assert response.status == 413
    assert served.keeper.published == []


async def test_a_broker_that_is_away_or_refuses_is_no_success(served: Served) -> None:
    """503 with a Retry-After, and 502."""
    async with served.client() as session:
        served.keeper.error = SourceUnavailable("the broker is away")
        async with session.post("/api/streams/orders/messages", data=b"x") as response:
            assert (response.status, response.headers["retry-after"]) == (503, "5")
        served.keeper.error = SourceMisconfigured("no such topic")
        assert await post(session, b"{}") == (502, {"error": "no such topic"})


async def test_the_token_guards_all_but_health(served: Served) -> None:
    """A wrong, a missing and a non-ASCII token are all 401; the right one works for `/api` and `/metrics`."""
    async with served.client(token="tökén") as session:
        for wrong in ("", "Bearer", "Bearer nope", "Basic tökén", "Bearer tökéñ"):
            headers = {"authorization": wrong.encode().decode("latin-1")} if wrong else {}
            assert (await post(session, b"{}", **headers))[0] == 401
        async with session.get("/metrics") as response:
            assert (response.status, response.headers["www-authenticate"]) == (401, "Bearer")
        async with session.get("/health/live") as response:
            assert response.status == 200
    async with served.client(token="token") as session:
        assert (await post(session, b"{}", authorization="Bearer token"))[0] == 202
        async with session.get("/metrics", headers={"authorization": "bearer token"}) as response:
            assert response.status == 200


async def test_a_web_page_cannot_publish_without_a_token(served: Served) -> None:
    """A browser sends `Origin` with every cross-site POST."""
    async with served.client() as session:
        assert (await post(session, b"{}", origin="http://evil.example"))[0] == 403
    assert served.keeper.published == []


async def test_readiness_gives_its_reasons(served: Served) -> None:
    """503 with the reasons while there are any; liveness is not touched by them."""
    async with served.client() as session:
        async with session.get("/health/ready") as response:
            assert (response.status, await response.json()) == (200, {"ready": True, "reasons": []})
        served.reasons = ["the store does not answer"]
        async with session.get("/health/ready") as response:
            assert (response.status, await response.json()) == (503, {"ready": False, "reasons": ["the store does not answer"]})
        async with session.get("/health/live") as response:
            assert response.status == 200


async def test_metrics_are_scraped_as_text_or_open_metrics(served: Served) -> None:
    """What the scraper asks for, brought up to date first."""
    async with served.client() as session:
        async with session.get("/metrics") as response:
            assert "headrace_things_total 3.0" in await response.text()
            assert response.headers["content-type"].startswith("text/plain")
        async with session.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}) as response:
            assert (await response.text()).endswith("# EOF\n")


async def test_a_port_that_is_taken_is_an_error(served: Served) -> None:
    """`OSError` at once, not an exit of the process."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        api = Api(streams=dict, unready=list, metrics=served.registry, refresh=served.refresh, token=None, max_body_bytes=1)
        with pytest.raises(OSError, match="in use"):
            HttpServer(api.app, host="127.0.0.1", port=taken.getsockname()[1])
