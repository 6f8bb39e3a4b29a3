"""What `serve` leans on goes away under it, and comes back."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.brokers import Kafka, PostgreSQL
from headrace.testing.pytest_plugin import OwnServer

from .harness import KafkaTopic, LocalQueue, Rig, Serve, rig_on

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ROUNDS = pytest.mark.parametrize(
    "rounds", [pytest.param(1), pytest.param(5, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
LONG_LEASE = {"dispatch": {"lease_seconds": 20.0}}
"""Longer than the outage: nobody but the process itself may take up again what it had claimed."""


async def _outages(rig: Rig, serve: Serve, server: Kafka | PostgreSQL, rounds: int) -> None:
    """Kill the server under load, and start it again with its data once `serve` says that it cannot go on."""
    await serve.start()
    async with rig.load():
        for _ in range(rounds):
            await rig.progress(300)
            await asyncio.to_thread(server.kill)
            await rig.until(serve.is_unready)
            await asyncio.to_thread(server.restart)
            await serve.becomes_ready()
            await rig.all_until_now_settled()
    await rig.settle()
    assert await serve.terminate() == 0
    print(await rig.reckon())
    assert serve.tracebacks() == []


@ROUNDS
async def test_kafka_is_killed_and_comes_back(
    own_server: OwnServer, database: str, tmp_path: Path, seed: int, rounds: int
) -> None:
    """K22: unready while the broker is away, ready when it is back, in the same process; nothing is lost, doubled, repeated."""
    server = own_server("kafka")
    assert isinstance(server, Kafka)
    topic = KafkaTopic(server, f"e2e-{uuid.uuid4().hex[:8]}")
    async with rig_on(tmp_path, topic, database, seed) as rig:
        await _outages(rig, rig.serve(), server, rounds)


@ROUNDS
async def test_postgresql_is_killed_and_comes_back(
    own_server: OwnServer, topic: KafkaTopic, tmp_path: Path, seed: int, rounds: int
) -> None:
    """X2: unready while the database is away, ready when it is back, in the same process; nothing is lost, doubled, repeated."""
    server = own_server("postgresql")
    assert isinstance(server, PostgreSQL)
    async with rig_on(tmp_path, topic, server.create_database(), seed) as rig:
        await _outages(rig, rig.serve(**LONG_LEASE), server, rounds)


class FullDisk:
    """A file system of its own that is full of ballast."""

    complaint = "full"

    def __init__(self, folder: Path) -> None:
        self.store = folder
        self._ballast = folder / "ballast"

    def fill(self, serve: Serve) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(2**12))
            except OSError:
                pass

    def free(self, serve: Serve) -> None:
        self._ballast.unlink()


class SizeLimit:
    """The process may not make a file longer than this: neither the store nor the queue can grow."""

    complaint = "disk I/O error"
    bytes = 512 * 2**10

    def __init__(self, folder: Path) -> None:
        self.store = folder

    def fill(self, serve: Serve) -> None:
        _, hard = resource.prlimit(serve.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(serve.pid, resource.RLIMIT_FSIZE, (self.bytes, hard))

    def free(self, serve: Serve) -> None:
        _, hard = resource.prlimit(serve.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(serve.pid, resource.RLIMIT_FSIZE, (hard, hard))


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[FullDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)], capture_output=True, check=False
    ).returncode == 0  # fmt: skip
    if not mounted:
        pytest.skip("no file system can be mounted here: that takes root")
    yield FullDisk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(params=["disk", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> FullDisk | SizeLimit:
    return request.getfixturevalue("full_disk") if request.param == "disk" else SizeLimit(tmp_path)


async def test_a_full_disk_under_sqlite_is_waited_for(disk: FullDisk | SizeLimit, tmp_path: Path, seed: int) -> None:
    """It says what is the matter, is unready, lives, and goes on when there is room again; nothing is lost or doubled."""
    async with rig_on(tmp_path, LocalQueue(tmp_path), f"sqlite:///{disk.store / 'store.db'}", seed) as rig:
        serve = rig.serve(**LONG_LEASE)
        await serve.start()
        async with rig.load():
            await rig.progress(300)
            disk.fill(serve)

            async def says_so() -> bool:
                await rig.publish()  # until there is no room left in what the files have already
                return serve.says("the store is away", "warning", disk.complaint)

            await rig.until(says_so)
            await rig.until(serve.is_unready)
            disk.free(serve)
            await serve.becomes_ready()
            await rig.all_until_now_settled()
        await rig.settle()
        assert await serve.terminate() == 0
        print(await rig.reckon())
        assert serve.tracebacks() == []
