"""The webhook target against a real socket whose other end behaves badly."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from headrace.dispatch.attempt import Verdict, attempt
from headrace.dispatch.targets.webhook import WebhookConfig, WebhookTarget
from headrace.store import StoredEvent

EVENT = StoredEvent(
    id=1,
    identity="eu-orders:orders/0/1/0:0",
    trigger_id="eu-orders",
    stream="orders",
    message_id="orders/0/1/0",
    index=0,
    generation=0,
    payload={"n": 1},
    has_payload=True,
    dedupe_key=None,
    lane=None,
    published_at=None,
    stored_at=0.0,
    priority=1,
    pool="default_pool",
    pool_slots=1,
    attempt=1,
)


@pytest.fixture
async def send(receiver: Any) -> AsyncIterator[Any]:
    """Delivers one event to the receiver, with the settings given the first time."""
    targets: list[WebhookTarget] = []

    async def deliver(**config: Any) -> Verdict:
        if not targets:
            targets.append(WebhookTarget(WebhookConfig(**{"url": receiver.url, "timeout": 5, **config})))
        return await attempt(targets[0], EVENT, 0.0)

    yield deliver
    for target in targets:
        await target.aclose()


async def test_an_event_is_posted_as_a_cloudevent(receiver: Any, send: Any) -> None:
    """POST to the path and query of the URL, with the event's identity as its id; the token and headers go along."""
    verdict = await send(token="s3cret", headers={"X-Tenant": "acme", "user-agent": "mine"})
    assert verdict == Verdict("delivered", "HTTP 200")
    [request] = receiver.requests
    assert request.line == "POST /orders?key=secret-key HTTP/1.1"
    assert orjson.loads(request.body)["id"] == EVENT.identity
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
    assert (headers["authorization"], headers["x-tenant"], headers["user-agent"]) == ("Bearer s3cret", "acme", "mine")


async def test_binary_mode_puts_the_attributes_into_headers(receiver: Any, send: Any) -> None:
    """The body is the payload."""
    await send(mode="binary")
    [request] = receiver.requests
    assert request.body == b'{"n":1}'
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert (headers["ce-id"], headers["ce-specversion"], headers["content-type"]) == (EVENT.identity, "1.0", "application/json")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *[(status, "delivered") for status in (200, 201, 202, 204, 299)],
        *[(status, "retry") for status in (408, 429, 500, 502, 503, 504, 599)],
        *[(status, "dead") for status in (300, 304, 400, 401, 403, 404, 409, 410, 413, 422, 451)],
    ],
)
async def test_the_status_decides(receiver: Any, send: Any, status: int, outcome: str) -> None:
    """2xx delivered; 408, 429 and 5xx tried again; any other dead, with the status in the answer."""
    receiver.behave = lambda request: request.answer(status)
    verdict = await send()
    assert verdict.outcome == outcome
    assert verdict.answer.startswith(f"HTTP {status}")
    assert verdict.error is None


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(receiver: Any, send: Any, status: int) -> None:
    """Dead with the reason, and the payload goes nowhere else."""
    receiver.behave = lambda request: request.answer(status, Location="/elsewhere")
    verdict = await send()
    assert (verdict.outcome, "redirects are not followed" in verdict.answer, len(receiver.requests)) == ("dead", True, 1)


async def test_retry_after_is_read(receiver: Any, send: Any) -> None:
    """From 429 and 503, in seconds or as a date."""
    receiver.behave = lambda request: request.answer(429, Retry_After="17")
    assert (await send()).retry_after == 17
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    receiver.behave = lambda request: request.answer(503, Retry_After=moment)
    assert 95 < (await send()).retry_after <= 100


async def test_the_beginning_of_the_answer_is_kept(receiver: Any, send: Any) -> None:
    """200 printable characters, whatever the body is."""
    receiver.behave = lambda request: request.answer(400, "no such order\n\x00\u20ac ".encode() + b"\xff" + b"x" * 1000)
    verdict = await send()
    assert verdict.answer.startswith("HTTP 400: no such order  \u20ac \ufffdxxx")
    assert len(verdict.answer) == len("HTTP 400: ") + 200


async def test_connections_are_kept_alive(receiver: Any, send: Any) -> None:
    """Ten deliveries, one connection, bodies and all."""
    receiver.behave = lambda request: request.answer(200, b"x" * 5000)
    for _ in range(10):
        assert (await send()).outcome == "delivered"
    assert receiver.connections == 1


async def test_a_long_body_is_not_read_to_its_end(receiver: Any, send: Any) -> None:
    """A body without end costs 64 KiB and the connection, and the status still decides."""
    sent = 0

    async def flood(request: Any) -> None:
        nonlocal sent
        await request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            await request.send(b"x" * 65536)
            sent += 65536

    receiver.behave = flood
    verdict = await send()
    assert (verdict.outcome, verdict.answer) == ("delivered", "HTTP 200: " + "x" * 200)
    assert sent < 20_000_000  # what the sockets hold


async def test_a_body_that_never_ends_does_not_hold_the_delivery(receiver: Any, send: Any) -> None:
    """Once the status is known the event is delivered, however slowly the body drips."""

    async def drip(request: Any) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nab")
        await asyncio.sleep(60)

    receiver.behave = drip
    started_at = asyncio.get_running_loop().time()
    assert await send() == Verdict("delivered", "HTTP 200: ab")
    assert asyncio.get_running_loop().time() - started_at < 4  # well below the timeout of 5


async def test_a_body_that_breaks_off_changes_nothing(receiver: Any, send: Any) -> None:
    """The status said that the event was taken; that the connection ended inside the body does not undo it."""

    async def break_off(request: Any) -> None:
        await request.send(b"HTTP/1.1 202 Accepted\r\nContent-Length: 1000\r\n\r\nhalf")
        request.writer.close()

    receiver.behave = break_off
    assert (await send()).outcome == "delivered"


async def _silent_close(request: Any) -> None:
    request.writer.close()


async def _reset(request: Any) -> None:
    request.drop()


async def _half_closed(request: Any) -> None:
    request.writer.write_eof()
    await asyncio.sleep(60)


async def _cut_headers(request: Any) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    request.writer.close()


async def _nonsense(request: Any) -> None:
    await request.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    request.writer.close()


@pytest.mark.parametrize("misbehave", [_silent_close, _reset, _half_closed, _cut_headers, _nonsense])
async def test_no_answer_is_tried_again(receiver: Any, send: Any, misbehave: Any) -> None:
    """A connection that ends without a status says nothing about the event: tried again, with a reason that shows no secret,
    on a connection that works again the next time."""
    receiver.behave = misbehave
    verdict = await send()
    assert (verdict.outcome, verdict.error) == ("retry", None)
    assert verdict.answer.startswith("127.0.0.1: ")
    assert "secret-key" not in verdict.answer
    receiver.behave = lambda request: request.answer(200)
    assert (await send()).outcome == "delivered"


async def test_an_idle_connection_that_was_closed_is_not_used(receiver: Any, send: Any) -> None:
    """A receiver that closes an idle connection costs no attempt."""

    async def answer_and_close(request: Any) -> None:
        await request.answer(200)
        request.writer.close()

    receiver.behave = answer_and_close
    for _ in range(5):
        assert (await send()).outcome == "delivered"
        await asyncio.sleep(0.02)  # the close arrives
    assert receiver.connections == 5


async def test_no_answer_in_time_is_tried_again(receiver: Any, send: Any) -> None:
    """The timeout covers everything up to the status."""

    async def slowly(request: Any) -> None:
        await asyncio.sleep(60)

    receiver.behave = slowly
    assert await send(timeout=0.2) == Verdict("retry", "no answer within 0.2 s")


async def test_nobody_listens(receiver: Any) -> None:
    """Refused and unknown hosts are tried again, with the host and the reason in the answer, and not the URL."""
    await receiver.stop()
    try:
        for url, reason in [
            (receiver.url, "127.0.0.1: cannot connect: "),
            ("http://no-such-host.invalid/?key=secret-key", "no-such-host.invalid: cannot connect: "),
        ]:
            target = WebhookTarget(WebhookConfig(url=url, timeout=5))
            verdict = await attempt(target, EVENT, 0.0)
            await target.aclose()
            assert verdict.outcome == "retry"
            assert verdict.answer.startswith(reason)
            assert "secret-key" not in verdict.answer
    finally:
        await receiver.start()


async def test_calls_run_at_once_and_cookies_are_not_kept(receiver: Any, send: Any) -> None:
    """Events that are delivered at the same time do not wait for each other; a cookie of one answer is not in the next call."""
    arrived = asyncio.Event()

    async def together(request: Any) -> None:
        if len(receiver.requests) == 20:
            arrived.set()
        await arrived.wait()
        await request.answer(200, Set_Cookie="session=1")

    receiver.behave = together
    verdicts = await asyncio.gather(*(send(max_concurrency=20) for _ in range(20)))
    assert {verdict.outcome for verdict in verdicts} == {"delivered"}
    await send()
    assert not any("Cookie" in request.headers for request in receiver.requests)


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    """The event is not sent, and the answer says why."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "both.pem"
    pem.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    received = []
    server = await asyncio.start_server(lambda reader, writer: received.append(writer), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        target = WebhookTarget(WebhookConfig(url=f"https://localhost:{port}/?key=secret-key", timeout=5))
        verdict = await attempt(target, EVENT, 0.0)
        await target.aclose()
    assert verdict.outcome == "retry"
    assert verdict.answer.startswith("localhost: the certificate is not trusted: ")
    assert "secret-key" not in verdict.answer
    assert received == []


async def test_closing_leaves_nothing_open(receiver: Any) -> None:
    """`aclose` before any delivery, after one, and twice: no warning, no connection left."""
    target = WebhookTarget(WebhookConfig(url=receiver.url))
    await target.aclose()
    await attempt(target, replace(EVENT, id=2), 0.0)
    await target.aclose()
    await target.aclose()
