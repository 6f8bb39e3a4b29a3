"""A server in Docker, shown on an engine of the test's own that speaks Docker's API and runs nothing."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from headrace.testing.brokers.container import Container, pull, require_engine
from headrace.testing.brokers.server import BrokerUnavailable

IMAGE = "broker:1"


class Engine(ThreadingHTTPServer):
    """Knows one container: what was asked for, its state, and the calls that changed it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.has_image = False
        self.can_pull = True
        self.created: dict[str, Any] = {}
        self.status = "absent"
        self.calls: list[str] = []

    @property
    def host(self) -> str:
        return f"tcp://127.0.0.1:{self.server_port}"


class Api(BaseHTTPRequestHandler):
    """The few calls of the API that testcontainers makes of it."""

    server: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None: ...

    def do_GET(self) -> None:
        path = self.path_without_version()
        if path == "/version":
            self.answer(200, {"ApiVersion": "1.44", "Version": "27"})
        elif path.startswith("/images/"):
            self.answer(200 if self.server.has_image else 404, {"Id": "sha256:1", "message": "No such image"})
        elif path.endswith("/logs"):
            text = b"one line\n"
            self.answer(200, b"\1\0\0\0" + len(text).to_bytes(4, "big") + text)
        else:
            state = {"Status": self.server.status}
            self.answer(200, {"Id": "c1", "Name": "/c", "Image": IMAGE, "State": state, "Config": {"Tty": False, "Image": IMAGE}})

    def do_POST(self) -> None:
        path = self.path_without_version()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/images/create":
            self.server.has_image = self.server.can_pull
            self.answer(200 if self.server.can_pull else 500, {"message": "no route to the registry"})
        elif path == "/containers/create":
            self.server.created = json.loads(body)
            self.answer(201 if self.server.has_image else 404, {"Id": "c1", "message": "No such image"})
        else:
            call = path.rpartition("/")[2]
            if call != "wait":
                self.server.calls.append(call)
                self.server.status = "running" if call == "start" else "exited"
            self.answer(200 if call == "wait" else 204, {"StatusCode": 137} if call == "wait" else None)

    def do_DELETE(self) -> None:
        self.server.calls.append("remove")
        self.server.status = "absent"
        self.answer(204, None)

    def path_without_version(self) -> str:
        return re.sub(r"^/v[\d.]+", "", urlsplit(self.path).path)

    def answer(self, status: int, content: dict[str, Any] | bytes | None) -> None:
        body = b"" if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    from testcontainers.core.config import testcontainers_config

    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)  # a container that only a real engine can run
    with Engine() as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        yield engine
        engine.shutdown()
        thread.join()


def test_a_container_listens_at_a_fixed_port_of_the_loopback(engine: Engine) -> None:
    """Its port stays over restarts, and is nobody else's to reach."""
    container = Container(IMAGE, port=9092, host_port=12345, environment={"A": "b"}, command=["serve", "-c", "x=1 2"])
    container.start()
    assert container.is_running()
    assert engine.created["Image"] == IMAGE
    assert engine.created["Env"] == ["A=b"]
    assert engine.created["Cmd"] == ["serve", "-c", "x=1 2"]
    assert engine.created["HostConfig"]["PortBindings"] == {"9092/tcp": [{"HostIp": "127.0.0.1", "HostPort": "12345"}]}
    container.close()


def test_the_same_container_ends_and_starts_again(engine: Engine) -> None:
    """A stop or a kill keeps it, with its data; close removes it."""
    container = Container(IMAGE, port=9092, host_port=12345, environment={})
    assert not container.is_running()
    container.start()
    for end in (container.stop, container.kill):
        end()
        assert not container.is_running()
        container.start()
        assert container.is_running()
    assert container.log() == "one line\n"
    container.close()
    container.close()
    assert engine.calls == ["start", "stop", "start", "kill", "start", "remove"]


def test_an_image_is_fetched_once(engine: Engine) -> None:
    """What the engine has is not fetched; what it cannot fetch is a reason to go another way."""
    pull(IMAGE)
    assert engine.has_image
    engine.can_pull = False
    pull(IMAGE)
    engine.has_image = False
    with pytest.raises(BrokerUnavailable, match=r"no image broker:1: .*no route to the registry"):
        pull(IMAGE)
    with pytest.raises(BrokerUnavailable, match="does not run broker:1"):
        Container(IMAGE, port=9092, host_port=12345, environment={}).start()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("unix:///no/such/engine.sock", "no Docker engine answers at unix:///no/such/engine.sock"),
        ("tcp://127.0.0.1:9", "no Docker engine answers at tcp://127.0.0.1:9"),
        ("tcp://10.0.0.1:2375", "is not on this machine"),
    ],
)
def test_an_engine_that_is_not_here_is_a_reason(host: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next way is tried at once; one that is far away could not be reached over the loopback."""
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(BrokerUnavailable, match=reason):
        require_engine()
