"""`headrace serve` as a process: started, used, reloaded, stopped, and refused."""

import asyncio
import json
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from headrace.testing.waiting import eventually

HANDLERS = """
import logging, pathlib, time
from headrace import BaseEventTrigger

def note(event):
    with open("handled", "a") as file:
        file.write(f"{event.trigger_id} {event.payload['value']['n']}\\n")

class Noisy(BaseEventTrigger):
    def serialize(self):
        return ("shop.Noisy", {})

    async def filter_shared_stream(self, shared_stream):
        async for message in shared_stream:
            logging.getLogger("shop").info("looked at %s", message.json()["n"], extra={"payload": "hidden"})
            if False:
                yield

def hang(event):
    pathlib.Path("hanging").touch()
    time.sleep(120)
"""


class Serve:
    """A `serve` in a folder of its own. The configuration can be changed between starts, or before a SIGHUP."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.config: dict[str, Any] = {
            "store": {"url": f"sqlite:///{folder}/store.db"},
            "http": {"port": 0},
            "streams": {"orders": {"connector": "local", "path": f"{folder}/orders.db", "visibility_timeout": 1.0}},
            "triggers": {"all": self.trigger()},
        }
        (folder / "shop.py").write_text(HANDLERS)
        self._process: asyncio.subprocess.Process | None = None
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))

    @staticmethod
    def trigger(function: str = "note", **match: Any) -> dict[str, Any]:
        return {
            "stream": "orders",
            "match": match or {"n": [{"exists": True}]},
            "target": {"callable": {"function": f"shop:{function}"}},
        }

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    def write(self) -> None:
        (self.folder / "headrace.yaml").write_text(yaml.safe_dump(self.config))

    async def start(self) -> None:
        self.write()
        with (self.folder / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace.app.cli", "serve", "headrace.yaml", cwd=self.folder, stderr=log
            )

    async def listening(self) -> None:
        await eventually(lambda: self.logged("listening") or self.process.returncode is not None, 45)
        self.url = self.lines("listening")[0]["url"]

    async def ready(self) -> None:
        await self.start()
        await self.listening()
        await eventually(self.is_ready, 45)

    async def readiness(self) -> tuple[int, list[str]]:
        async with self._session.get(f"{self.url}/health/ready") as response:
            return response.status, (await response.json())["reasons"]

    async def is_ready(self) -> bool:
        return (await self.readiness())[0] == 200

    async def publish(self, *numbers: int) -> None:
        lines = "".join(json.dumps({"value": {"n": number}}) + "\n" for number in numbers)
        url = f"{self.url}/api/streams/orders/messages"
        async with self._session.post(url, data=lines, headers={"content-type": "application/x-ndjson"}) as response:
            assert response.status == 202

    async def metrics(self) -> str:
        async with self._session.get(f"{self.url}/metrics") as response:
            return await response.text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event (or whose event begins with it)."""
        text = (self.folder / "log").read_text()
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in found if line["event"].startswith(event)]

    def logged(self, event: str) -> bool:
        return bool(self.lines(event))

    def handled(self) -> list[str]:
        file = self.folder / "handled"
        return sorted(file.read_text().splitlines()) if file.exists() else []

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        async with asyncio.timeout(40):
            return await self.process.wait()

    async def output(self) -> str:
        return (self.folder / "log").read_text()

    async def aclose(self) -> None:
        await self._session.close()
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def metrics_have(serve: Serve, sample: str) -> Callable[[], Awaitable[bool]]:
    """Whether the metrics have this line by now."""

    async def contains() -> bool:
        return sample in await serve.metrics()

    return contains


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    serve = Serve(tmp_path)
    yield serve
    await serve.aclose()


@pytest.mark.timeout(120)
async def test_what_is_published_is_stored_and_dispatched_and_sigterm_drains(serve: Serve) -> None:
    """From HTTP to the target; the metrics count it, log lines say whose they are; nothing comes twice after a restart."""
    serve.config["triggers"]["noisy"] = {"stream": "orders", "class": "shop.Noisy", "target": {"log": {}}}
    await serve.ready()
    await serve.publish(*range(20))
    await eventually(lambda: len(serve.handled()) == 20, 30)
    delivered = 'headrace_dispatch_attempts_total{outcome="delivered",target="callable"} 20.0'
    await eventually(metrics_have(serve, delivered), 30)
    metrics = await serve.metrics()
    assert 'headrace_events_read_total{connector="local",stream="orders"} 20.0' in metrics
    assert "headrace_store_events_total 20.0" in metrics
    await eventually(metrics_have(serve, 'headrace_lag_events{connector="local",stream="orders"} 0.0'), 30)
    (line,) = serve.lines("looked at 7")
    assert (line["trigger"], line["stream"], line["logger"]) == ("noisy", "orders", "shop")
    assert line["message"]
    assert 'headrace_triggers{class="headrace.triggers.pattern.PatternTrigger",phase="running"} 1.0' in metrics
    serve.signal(signal.SIGTERM)
    assert await serve.ended() == 0
    assert serve.logged("stopped")
    await serve.ready()
    await serve.publish(20)
    await eventually(lambda: len(serve.handled()) == 21, 30)
    assert len(set(serve.handled())) == 21


@pytest.mark.timeout(120)
async def test_sighup_restarts_only_what_changed_and_keeps_the_old_on_a_mistake(serve: Serve) -> None:
    """A new trigger gets what is published from then on; a wrong configuration is logged and changes nothing."""
    await serve.ready()
    await serve.publish(1)
    await eventually(lambda: serve.handled() == ["all 1"], 30)
    serve.config["triggers"]["second"] = serve.trigger(n=[2])
    serve.write()
    serve.signal(signal.SIGHUP)
    await eventually(lambda: serve.logged("reloaded"), 30)
    await serve.publish(2)
    await eventually(lambda: serve.handled() == ["all 1", "all 2", "second 2"], 30)

    serve.config["triggers"]["third"] = {"stream": "nowhere"}
    serve.write()
    serve.signal(signal.SIGHUP)
    await eventually(lambda: len(serve.lines("the new configuration is wrong")) == 2, 30)
    assert any("triggers.third.stream: there is no stream" in line["problem"] for line in serve.lines("the new conf"))
    await serve.publish(3)
    await eventually(lambda: "all 3" in serve.handled(), 30)
    assert await serve.is_ready()

    del serve.config["triggers"]["third"], serve.config["triggers"]["all"]
    serve.config["http"]["port"] = 1
    serve.write()
    serve.signal(signal.SIGHUP)
    await eventually(lambda: len(serve.lines("reloaded")) == 2, 30)
    assert serve.logged("`http` has changed")
    await serve.publish(4, 2)
    await eventually(lambda: serve.handled().count("second 2") == 2, 30)
    assert "all 4" not in serve.handled()


@pytest.mark.timeout(120)
async def test_a_second_signal_stops_at_once(serve: Serve) -> None:
    """A drain that waits for a slow target is cut short; the exit code names the signal."""
    serve.config["triggers"]["all"] = serve.trigger("hang")
    await serve.ready()
    await serve.publish(1)
    await eventually((serve.folder / "hanging").exists, 30)
    serve.signal(signal.SIGTERM)
    await eventually(lambda: serve.logged("draining"))
    assert (await serve.readiness())[1] == ["it is stopping"]
    serve.signal(signal.SIGINT)
    assert await serve.ended() == 128 + signal.SIGINT
    assert serve.logged("stopped at once")


@pytest.mark.timeout(120)
async def test_shutdown_keeps_its_deadline(serve: Serve) -> None:
    """A target that does not return holds the drain for `shutdown_timeout`, not longer."""
    serve.config["triggers"]["all"] = serve.trigger("hang")
    serve.config["shutdown_timeout"] = 1.5
    await serve.ready()
    await serve.publish(1)
    await eventually((serve.folder / "hanging").exists, 30)
    started = asyncio.get_running_loop().time()
    serve.signal(signal.SIGTERM)
    assert await serve.ended() == 0
    assert asyncio.get_running_loop().time() - started < 15  # the machine may be busy; without a deadline it is 120


@pytest.mark.timeout(120)
async def test_it_waits_for_a_store_that_is_away(serve: Serve) -> None:
    """Live, not ready, with the reason; SIGTERM ends it at once, with 0."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        serve.config["store"]["url"] = f"postgresql://user:hunter2@127.0.0.1:{unused.getsockname()[1]}/headrace"
        await serve.start()
        await serve.listening()
        await eventually(lambda: serve.logged("the store does not answer"), 30)
        status, reasons = await serve.readiness()
        assert status == 503
        assert reasons[0].startswith("the store does not answer")
        assert "hunter2" not in await serve.output()
        serve.signal(signal.SIGTERM)
        assert await serve.ended() == 0


@pytest.mark.timeout(120)
async def test_it_waits_for_a_broker_that_is_away(serve: Serve) -> None:
    """Live, not ready, with the stream and the reason; its log lines are the stream's, not one trigger's."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        serve.config["streams"]["orders"] = {
            "connector": "kafka",
            "bootstrap_servers": address,
            "topics": ["orders"],
            "group_id": "g",
        }
        await serve.start()
        await serve.listening()
        await eventually(lambda: len(serve.lines("stream 'orders' ended")) > 1, 30)
        status, (reason,) = await serve.readiness()
        assert status == 503
        assert "stream orders is not open" in reason
        assert address in reason
        assert {(line["stream"], line.get("trigger")) for line in serve.lines("stream 'orders' ended")} == {("orders", None)}
        serve.signal(signal.SIGTERM)
        assert await serve.ended() == 0


@pytest.mark.timeout(120)
async def test_what_cannot_start_is_a_line_and_exit_code_1(serve: Serve) -> None:
    """A wrong configuration, a port that is taken, a store of a newer version, a store that another serve has."""
    serve.config["triggers"]["all"]["target"] = {"webhok": {}}
    await serve.start()
    assert await serve.ended() == 1
    assert "error: headrace.yaml:" in await serve.output()

    serve.config["triggers"]["all"] = serve.trigger()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serve.config["http"]["port"] = taken.getsockname()[1]
        await serve.start()
        assert await serve.ended() == 1
        assert "cannot listen on 127.0.0.1" in await serve.output()
    assert "Traceback" not in await serve.output()

    serve.config["http"]["port"] = 0
    with sqlite3.connect(serve.folder / "newer.db") as database:
        database.execute("CREATE TABLE headrace_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO headrace_version VALUES ('9999')")
    serve.config["store"]["url"] = f"sqlite:///{serve.folder}/newer.db"
    await serve.start()
    assert await serve.ended() == 1
    assert "upgrade Headrace" in await serve.output()

    serve.config["store"]["url"] = f"sqlite:///{serve.folder}/store.db"
    await serve.ready()
    (serve.folder / "second").mkdir()
    second = Serve(serve.folder / "second")
    second.config["store"] = serve.config["store"]
    try:
        await second.start()
        assert await second.ended() == 1
        assert "Traceback" not in await second.output()
        assert "store.db" in await second.output()
    finally:
        await second.aclose()


@pytest.mark.timeout(120)
async def test_pausing_and_removing_reach_a_running_serve_within_a_second(serve: Serve) -> None:
    """`headrace triggers` acts on the store, and the running serve follows; a paused trigger delays nobody."""

    async def triggers(*arguments: str) -> None:
        command = (sys.executable, "-m", "headrace.app.cli", "triggers", "headrace.yaml", *arguments)
        process = await asyncio.create_subprocess_exec(*command, cwd=serve.folder)
        assert await process.wait() == 0

    serve.config["triggers"]["second"] = serve.trigger()
    await serve.ready()
    await triggers("pause", "second")
    await eventually(lambda: serve.logged("trigger second: paused"), 5)
    await serve.publish(1)
    await eventually(lambda: serve.handled() == ["all 1"], 30)
    await triggers("resume", "second")
    await eventually(lambda: serve.logged("trigger second: active"), 5)
    await serve.publish(2)
    await eventually(lambda: serve.handled() == ["all 1", "all 2", "second 2"], 30)
    assert await serve.is_ready()
