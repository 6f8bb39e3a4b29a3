"""The README's Kafka example, as it stands there, on a real Kafka: its files are written, its commands are run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from headrace.testing.brokers import Kafka
from headrace.testing.brokers.process import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

README = Path(__file__).parents[2] / "README.md"


def block(name: str) -> str:
    """The code block that follows `<!-- example: NAME -->`."""
    found = re.search(rf"<!-- example: {re.escape(name)} -->\n```\w+\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, f"the README has no example {name}"
    return found[1]


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for there, here in pairs:
        assert there in text, f"the README's example has no {there!r} any more"
        text = text.replace(there, here)
    return text


async def test_the_kafka_example_does_what_the_readme_says(kafka: Kafka, tmp_path: Path) -> None:
    """Order 1 reaches the webhook, three events are derived, every command ends well."""
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(request: web.Request) -> web.Response:
        received.put_nowait(json.loads(await request.read()))
        return web.Response(status=204)

    application = web.Application()
    application.router.add_post("/orders", receive)
    server = web.AppRunner(application)
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    webhook = f"http://127.0.0.1:{server.addresses[0][1]}"

    config = replaced(
        block("headrace.yaml"),
        ("localhost:9092", kafka.address),
        ("[orders]", f"[{kafka.create_topic('readme.orders', partitions=2)}]"),
        ("orders.dead", kafka.create_topic("readme.orders.dead")),
        ("http://localhost:9000", webhook),
    )
    (tmp_path / "headrace.yaml").write_text(config + f"http: {{port: {free_port()}}}\n")
    (tmp_path / "order_filters.py").write_text(block("order_filters.py"))
    commands = [shlex.split(line) for line in block("commands").splitlines()]
    assert [command[1] for command in commands] == ["check", "serve", "publish", "publish", "events"]
    check, serve, *publish, events = commands

    async def start(command: list[str]) -> asyncio.subprocess.Process:
        assert command[0] == "headrace"
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "headrace.app.cli",
            *command[1:],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(command: list[str]) -> str:
        process = await start(command)
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, output.decode()
        return output.decode()

    await run(check)
    serving = await start(serve)
    reading = asyncio.create_task(serving.communicate())
    try:
        for command in publish:
            await run(command)
        event = await asyncio.wait_for(received.get(), 60)
        assert (event["specversion"], event["data"]["value"]["id"]) == ("1.0", 1)
        async with asyncio.timeout(60):
            while len(derived := json.loads(await run([*events, "--json"]))) < 3:
                pass  # each look starts a process
        assert sorted(each["trigger"] for each in derived) == ["audit", "audit", "eu-orders"]
        assert "eu-orders" in await run(events)
        serving.terminate()
        await asyncio.wait_for(reading, 60)
        assert serving.returncode == 0
        assert received.empty()
    finally:
        if serving.returncode is None:
            serving.kill()
        await reading
        await server.cleanup()
