"""The course of the demo: publish at a steady pace, kill `serve` half-way, start it again, wait until all is done, count."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from headrace.app.config import Config, load_config
from headrace.app.demo.brokers import kafka_topic, local_queue
from headrace.app.demo.orders import Expected, make_orders
from headrace.app.demo.receiver import Receiver
from headrace.app.demo.report import Report, Stored
from headrace.app.demo.sidecar import Sidecar, free_port
from headrace.errors import HeadraceError
from headrace.store import Store

SEED: Final = 20
PATIENCE: Final = 40.0
"""Seconds without any progress after which the rest counts as lost."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What to run."""

    events: int = 20_000
    rate: int = 500
    """Orders published a second."""
    kafka: str | None = None
    """`host:port` of a Kafka; None: the embedded broker."""
    keep: bool = False
    """Leave the folder with the configuration, the store and the log."""


class Progress(Protocol):
    """Told how far the demo is."""

    def expect(self, name: str, total: int) -> None: ...
    def reach(self, name: str, count: int) -> None: ...
    def say(self, text: str) -> None: ...


async def run_demo(settings: DemoSettings, progress: Progress) -> Report:
    """Run it all. Raises `HeadraceError` when a part of it does not come up; leaves no process behind."""
    with _folder(keep=settings.keep, progress=progress) as folder:
        async with AsyncExitStack() as stack:
            receiver = Receiver()
            await receiver.start()
            stack.push_async_callback(receiver.stop)
            broker = kafka_topic(settings.kafka) if settings.kafka else local_queue(folder)
            stream = await stack.enter_async_context(broker)
            port = free_port()
            path = folder / "headrace.yaml"
            path.write_text(yaml.safe_dump(_config(folder, stream, receiver.url, port), sort_keys=False))
            config = load_config(path)
            sidecar = Sidecar(path, folder / "serve.log", f"http://127.0.0.1:{port}")
            stack.push_async_callback(sidecar.aclose)
            try:
                return await _Course(settings, progress, config, sidecar, receiver).run()
            except ExceptionGroup as group:  # of its tasks, the first that failed
                raise group.exceptions[0] from group


class _Course:
    def __init__(self, settings: DemoSettings, progress: Progress, config: Config, sidecar: Sidecar, receiver: Receiver) -> None:
        self._settings = settings
        self._progress = progress
        self._config = config
        self._sidecar = sidecar
        self._receiver = receiver
        self._expected = Expected()
        self._orders = make_orders(settings.events, SEED, self._expected)
        self._interval = 0.5 if settings.kafka else 0.1
        """Seconds between two batches. Publishing to Kafka connects anew each time."""
        self._published = 0
        self._read_before_kill = 0
        self._read = 0

    async def run(self) -> Report:
        events = self._settings.events
        self._progress.expect("published", events)
        await self._sidecar.start()
        self._progress.say("headrace serve is ready; publishing")
        store = await Store.open(self._config.store.url)
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch())
                await self._publish(until=events // 2)
                await self._be_busy()
                await self._look()
                await self._publish_batch()  # so that some are surely under way
                await self._kill()
                starting = group.create_task(self._start_again())
                await self._publish(until=events)
                await starting
                await self._finish(store)
                watching.cancel()
            exit_code = await self._sidecar.stop()
            stored = await Stored.read(store)
        finally:
            await store.aclose()
        return Report.of(self._expected, stored, self._receiver, published=self._published, read=self._read, exit_code=exit_code)

    async def _publish(self, *, until: int) -> None:
        """Publish at the rate until so many orders are published."""
        due = time.monotonic()
        while self._published < until:
            await self._publish_batch()
            due += self._interval
            await asyncio.sleep(max(due - time.monotonic(), 0))

    async def _publish_batch(self) -> None:
        stream = self._config.streams["orders"]
        batch = list(islice(self._orders, max(int(self._settings.rate * self._interval), 1)))
        await stream.connector.publish(stream.connector_config, batch)
        self._published += len(batch)
        self._progress.reach("published", self._published)
        self._progress.expect("dispatched", self._expected.events)

    async def _be_busy(self) -> None:
        """Wait until the dispatcher is in the midst of its work."""
        while len(self._receiver.ids) < self._expected.events // 2:
            self._sidecar.check()
            await asyncio.sleep(0.02)

    async def _kill(self) -> None:
        dispatched = len(self._receiver.ids)
        self._progress.say(f"SIGKILL, with {self._published:,} orders published and {dispatched:,} events dispatched")
        self._sidecar.check()
        await self._sidecar.kill()
        self._read_before_kill = self._read

    async def _start_again(self) -> None:
        self._progress.say("starting it again; publishing goes on")
        await self._sidecar.start()
        self._progress.say("headrace serve is ready again")

    async def _watch(self) -> None:
        """Follow what was read, as the sidecar counts it, and what was dispatched."""
        while True:
            await self._look()
            self._progress.reach("dispatched", len(self._receiver.ids))
            await asyncio.sleep(0.2)

    async def _look(self) -> None:
        if (read := await self._sidecar.events_read()) is not None:
            self._read = max(self._read, self._read_before_kill + read)

    async def _finish(self, store: Store) -> None:
        """Wait until the webhook has all it must have and every malformed order is a dead letter, or nothing moves any more."""
        last: tuple[int, int, int] | None = None
        moved = time.monotonic()
        while True:
            self._sidecar.check()
            rejected = sum((await store.dead_letters.counts()).values())
            handled = len(self._receiver.ids)
            if handled >= self._expected.events and rejected >= len(self._expected.rejected):
                return
            if (now := (handled, rejected, self._read)) != last:
                last, moved = now, time.monotonic()
            elif time.monotonic() - moved > PATIENCE:
                self._progress.say(f"nothing has moved for {PATIENCE:g} s: what is missing counts as lost")
                return
            await asyncio.sleep(0.2)


@contextmanager
def _folder(*, keep: bool, progress: Progress) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    try:
        yield folder
    except HeadraceError:
        progress.say(f"what is left of it is in {folder}")
        raise
    if keep:
        progress.say(f"its files are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _config(folder: Path, stream: dict[str, Any], webhook: str, port: int) -> dict[str, Any]:
    target = {"webhook": {"url": webhook, "timeout": 4}}
    return {
        "store": {"url": f"sqlite:///{folder / 'store.db'}"},
        "http": {"port": port},
        "dispatch": {"lease_seconds": 5},  # what the killed one had claimed is taken up again that soon
        "streams": {"orders": stream},
        "triggers": {
            "large-eu-orders": {
                "stream": "orders",
                "match": {"region": ["eu"], "amount": [{"numeric": [">", 100]}]},
                "target": target,
            },
            "express-shipping": {"stream": "orders", "class": "headrace.app.demo.filters:ExpressShipping", "target": target},
            "audit": {"stream": "orders", "class": "headrace.app.demo.filters:Audit", "target": target},
        },
    }
