"""The demo itself, in small."""

import asyncio
import sys

import pytest


@pytest.mark.e2e
@pytest.mark.timeout(240)
async def test_x3_the_demo_loses_and_doubles_nothing() -> None:
    """X3: real processes, `serve` killed half-way; the command says so and exits with 0."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.app.cli", "demo", "--events", "600", "--rate", "300"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    assert "SIGKILL, with 330 orders published" in text
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if len(line.split()) > 1}
    assert (rows["published"], rows["lost"], rows["doubled"]) == ("600", "0", "0")
    assert rows["derived"] == rows["stored"] == rows["dispatched"]


async def test_a_kafka_that_is_not_there_is_a_line() -> None:
    """Nothing is left running, and the exit code is 1."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.app.cli", "demo", "--kafka", "127.0.0.1:1"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"error: Kafka does not answer at 127.0.0.1:1" in errors
    assert b"Traceback" not in errors
