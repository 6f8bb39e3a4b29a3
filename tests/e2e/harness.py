"""What the end-to-end tests share: `serve` as processes, a stream under load, a webhook, a witness, and the reckoning.

A `Rig` publishes the demo's orders for as long as its load is on, always so many that some are under way. What must come of
each order is known from how it was made. At the end `reckon` compares that with the database, read by its own SQL, with what
the webhook was sent, and with what the `Witness` saw settled at the broker while everything ran. Nothing that Headrace says
about itself is believed.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import asyncpg
import orjson
import yaml
from aiohttp import web
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaRecord
from headrace_local import LocalConfig, LocalConnector

from headrace import Message
from headrace.app.demo.orders import NUMBER_HEADER, Expected, make_orders
from headrace.app.demo.receiver import Work, order_number
from headrace.testing.brokers import Kafka
from headrace.testing.brokers.process import free_port
from headrace.testing.waiting import eventually

READY_SECONDS = 90.0
"""How long a `serve` may take to be ready. The machine may be busy."""
PATIENCE = 60.0
"""Seconds without any progress after which what is missing is lost."""
BATCH = 50
LEASE = 8.0
"""How long what a killed dispatcher had claimed stays claimed."""

REJECTING = "express-shipping"


# Processes.


class Serve:
    """One `headrace serve` at a time, with a configuration of its own. Its log goes on over restarts."""

    def __init__(self, folder: Path, name: str, config: dict[str, Any]) -> None:
        self.config = config | {"http": {"port": free_port()}}
        self._folder = folder
        self._file = folder / f"{name}.yaml"
        self._log = folder / f"{name}.log"
        self._url = f"http://127.0.0.1:{self.config['http']['port']}"
        self.ready_after: list[float] = []
        """For each start, how many seconds later it was first seen ready."""
        self.is_meant_to_run = False
        self._process: asyncio.subprocess.Process | None = None
        self._started: float | None = None
        self._log_from = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def begin(self) -> None:
        """Start the process, and do not wait for it."""
        self._file.write_text(yaml.safe_dump(self.config))
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        command = (sys.executable, "-m", "headrace.app.cli", "serve", self._file.name, "--log-format", "json")
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*command, cwd=self._folder, stdout=log, stderr=log)
        self._started = asyncio.get_running_loop().time()
        self.is_meant_to_run = True

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        await self.begin()
        await self.becomes_ready()

    async def becomes_ready(self) -> None:
        await eventually(self.is_ready, READY_SECONDS)
        if self._started is not None:
            self.ready_after.append(round(asyncio.get_running_loop().time() - self._started, 1))
            self._started = None

    async def is_ready(self) -> bool:
        return await self.reasons() == []

    async def is_unready(self) -> bool:
        """Whether it answers, and says why nothing should rely on it."""
        return bool(await self.reasons())

    async def reasons(self) -> list[str] | None:
        """Why it is not ready; nothing: it is; None: it does not answer."""
        self.check()
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
                session.get(f"{self._url}/health/ready") as response,
            ):
                reasons: list[str] = (await response.json())["reasons"]
                return reasons
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def events_read(self) -> int:
        """How many events this process has read, as its metrics say; 0 where it does not answer."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session,
                session.get(f"{self._url}/metrics") as response,
            ):
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return 0
        samples = [line for line in text.splitlines() if line.startswith("headrace_events_read_total{")]
        return int(sum(float(sample.rpartition(" ")[2]) for sample in samples))

    def check(self) -> None:
        """Fail if the process has ended by itself."""
        assert self._process is not None
        assert self._process.returncode is None, f"serve ended with {self._process.returncode}:\n{self.log()[-3000:]}"

    async def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        self.check()
        self.is_meant_to_run = False
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def terminate(self, seconds: float = 45.0) -> int:
        """SIGTERM it; returns its exit code."""
        self.check()
        self.is_meant_to_run = False
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(seconds):
            return await self._process.wait()

    async def aclose(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        """Everything it logged. Fails on a line that is not of the log's own form."""
        return [json.loads(line) for line in self.log().splitlines()]

    def says(self, *words: str) -> bool:
        """Whether a line since the last start has all these words."""
        with self._log.open("rb") as file:
            file.seek(self._log_from)
            return any(all(word in line for word in words) for line in file.read().decode(errors="replace").splitlines())

    def tracebacks(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "exception" in line]


class Receiver:
    """A webhook. Counts each id, and what it is about."""

    def __init__(self) -> None:
        self.ids: Counter[str] = Counter()
        self.work: dict[str, Work] = {}
        self.unreadable = 0
        self.open = asyncio.Event()
        """While it is not set, what comes is counted and waits for its answer."""
        self.open.set()
        self._runner = web.ServerRunner(web.Server(self._receive, access_log=None), shutdown_timeout=0.1)
        self.url = ""

    async def start(self) -> None:
        await self._runner.setup()
        port = free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port, backlog=512).start()
        self.url = f"http://127.0.0.1:{port}/"

    async def aclose(self) -> None:
        self.open.set()
        await self._runner.cleanup()

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            event = orjson.loads(await request.read())
            event_id, work = event["id"], (event["trigger"], order_number(event["data"]))
        except (ValueError, KeyError, TypeError):
            self.unreadable += 1
            return web.Response(status=400)
        self.ids[event_id] += 1
        self.work.setdefault(event_id, work)
        await self.open.wait()
        return web.Response(status=204)


# Brokers: where orders are published to, and which of them are settled.


class Broker(Protocol):
    stream: dict[str, Any]
    """The section of the stream in the configuration."""

    async def publish(self, messages: list[Message]) -> None:
        """Return when they are durable."""

    async def settled(self) -> set[int]:
        """The orders of which the broker was told, since the last call or before, that they are done with."""

    async def is_drained(self) -> bool:
        """Whether everything published is settled."""

    def message_id(self, number: int) -> str | None:
        """By what the message is known, where the broker says that when it is published."""


class KafkaTopic:
    """A topic, published to and looked at through librdkafka: another client than Headrace's."""

    def __init__(self, server: Kafka, name: str, partitions: int = 4) -> None:
        self.server = server
        server.create_topic(name, partitions)
        self._topic = name
        self._positions: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(partitions)}
        self._seen = dict.fromkeys(range(partitions), 0)
        self._committed = dict.fromkeys(range(partitions), 0)
        self._ids: dict[int, str] = {}
        quiet = {"bootstrap.servers": server.address, "log_level": 0}
        self._producer = Producer(quiet | {"enable.idempotence": True, "message.timeout.ms": 120_000, "linger.ms": 0})
        self._group = Consumer(quiet | {"group.id": name})  # it asks for the group's offsets, and never joins
        self.stream = {"connector": "kafka", "bootstrap_servers": server.address, "topics": [name], "group_id": name}
        self.stream |= {"session_timeout": 4.0, "heartbeat_interval": 1.0}  # so soon is a killed one's place given away

    async def publish(self, messages: list[Message]) -> None:
        await asyncio.to_thread(self._publish, messages)

    def _publish(self, messages: list[Message]) -> None:
        for message in messages:
            self._producer.produce(
                self._topic,
                value=message.value,
                key=message.key,
                headers=[(name, value) for name, value in message.headers],
                on_delivery=partial(self._delivered, _number(message.headers)),
            )
        assert self._producer.flush(150.0) == 0

    def _delivered(self, number: int, error: Any, record: KafkaRecord) -> None:
        assert error is None, error
        partition, offset = record.partition(), record.offset()
        assert partition is not None
        assert offset is not None
        self._ids[number] = f"{self._topic}/{partition}/{offset}/{record.timestamp()[1]}"
        self._positions[partition].append((offset, number))

    async def settled(self) -> set[int]:
        for partition, committed in (await asyncio.to_thread(self._commits)).items():
            assert committed >= self._committed[partition], f"K7: {partition} went back to {committed}"
            self._committed[partition] = committed
        found: set[int] = set()
        for partition, positions in self._positions.items():
            begin = end = self._seen[partition]
            while end < len(positions) and positions[end][0] < self._committed[partition]:
                end += 1
            found.update(number for _, number in positions[begin:end])
            self._seen[partition] = end
        return found

    def _commits(self) -> dict[int, int]:
        try:
            found = self._group.committed([TopicPartition(self._topic, partition) for partition in self._positions], 10.0)
        except KafkaException as error:
            raise Away from error
        return {at.partition: at.offset for at in found if at.offset >= 0}

    async def is_drained(self) -> bool:
        await self.settled()
        return all(seen == len(self._positions[partition]) for partition, seen in self._seen.items())

    def message_id(self, number: int) -> str | None:
        return self._ids[number]


class LocalQueue:
    """A queue of the embedded broker. What is settled is not in its table of messages any more."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "orders.db"
        self._open: set[int] = set()
        self.stream = {"connector": "local", "path": str(self._path), "queue": "orders", "visibility_timeout": 2.0}
        self._config = LocalConfig(path=str(self._path), queue="orders")

    async def publish(self, messages: list[Message]) -> None:
        await LocalConnector().publish(self._config, messages)
        self._open.update(_number(message.headers) for message in messages)

    async def settled(self) -> set[int]:
        before = set(self._open)  # what is published meanwhile may not be in the answer
        left = {int(bytes.fromhex(dict(json.loads(row[0]))[NUMBER_HEADER])) for row in await asyncio.to_thread(self._messages)}
        self._open -= before - left
        return before - left

    def _messages(self) -> list[tuple[str]]:
        try:
            with _sqlite(self._path) as connection:
                return connection.execute("SELECT headers FROM message").fetchall()
        except sqlite3.OperationalError as error:  # nobody has made the table yet
            raise Away from error

    async def is_drained(self) -> bool:
        return not await asyncio.to_thread(self._messages)

    def message_id(self, number: int) -> str | None:
        return None


class Away(Exception):
    """A server does not answer now."""


def _number(headers: Any) -> int:
    return int(dict(headers)[NUMBER_HEADER])


# The database, by its own SQL.


class Database:
    """Asks the store's database, not the store."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._is_sqlite = url.startswith("sqlite:")
        self._now = "SELECT (julianday('now') - 2440587.5) * 86400.0" if self._is_sqlite else (
            "SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)"
        )  # fmt: skip

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Raises `Away`."""
        try:
            if self._is_sqlite:
                return await asyncio.to_thread(self._sqlite_rows, query)
            connection = await asyncpg.connect(self.url, timeout=5.0)
            try:
                return [tuple(row) for row in await connection.fetch(query, timeout=30.0)]
            finally:
                await connection.close(timeout=5.0)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, sqlite3.OperationalError) as error:
            raise Away from error

    def _sqlite_rows(self, query: str) -> list[tuple[Any, ...]]:
        with _sqlite(Path(self.url.removeprefix("sqlite:///"))) as connection:
            return connection.execute(query).fetchall()

    async def now(self) -> float:
        ((now,),) = await self.rows(self._now)
        return float(now)

    async def count(self, table: str) -> int:
        ((count,),) = await self.rows(f"SELECT count(*) FROM {table}")
        return int(count)

    async def being_dispatched(self) -> set[str]:
        """The ids of the events that somebody has claimed."""
        query = """SELECT e.trigger_id, u.message_id, e.idx FROM headrace_event e JOIN headrace_unit u ON u.id = e.unit_id
            WHERE e.state = 'dispatching'"""
        return {f"{trigger}:{message}:{index}" for trigger, message, index in await self.rows(query)}


class _sqlite:  # noqa: N801  # a context manager, as sqlite3's own connection is, that closes too
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=30.0)

    def __enter__(self) -> sqlite3.Connection:
        return self._connection

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@dataclass(slots=True)
class Stored:
    """All that is in the database."""

    events: Counter[Work] = field(default_factory=Counter)
    ids: dict[str, Work] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    dead: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    """By trigger, order and cause."""
    units: dict[Work, float] = field(default_factory=dict)
    """When each was stored, by the database's clock."""

    @classmethod
    async def read(cls, database: Database) -> Stored:
        found = cls()
        numbers: dict[str, int] = {}
        rows = await database.rows(
            """SELECT u.trigger_id, u.message_id, u.stored_at, u.generation, e.idx, e.generation, e.payload, e.state
            FROM headrace_unit u LEFT JOIN headrace_event e ON e.unit_id = u.id"""
        )
        for trigger, message, _, generation, index, event_generation, payload, state in rows:
            assert (generation, event_generation or 0) == (0, 0)
            if payload is None:
                continue
            work = trigger, order_number(json.loads(payload))
            found.events[work] += 1
            found.states[state] += 1
            found.ids[f"{trigger}:{message}:{index}"] = work
            numbers[message] = work[1]  # each message has an audit event
        for trigger, message, stored_at, *_ in rows:
            found.units[trigger, numbers[message]] = stored_at
        for trigger, message, cause in await database.rows(
            """SELECT d.trigger_id, u.message_id, d.cause
            FROM headrace_dead_letter d JOIN headrace_unit u ON u.id = d.unit_id"""
        ):
            found.dead[trigger, numbers[message], cause] += 1
        return found


# The witness.


class Witness:
    """Looks at the broker all the time: for each order, a moment (by the database's clock) at which it was already settled."""

    def __init__(self, broker: Broker, database: Database) -> None:
        self.settled_by: dict[int, float] = {}
        self.looks = 0
        self._broker = broker
        self._database = database
        self._lock = asyncio.Lock()

    async def look(self) -> None:
        """The clock is read after the broker is: what is settled must have been stored before that moment. Raises `Away`."""
        async with self._lock:
            settled = await self._broker.settled()
            while True:
                try:
                    now = await self._database.now()
                    break
                except Away:
                    await asyncio.sleep(0.1)
            self.settled_by.update(dict.fromkeys(settled, now))
            self.looks += 1

    async def watch(self) -> None:
        while True:
            with suppress(Away):
                await self.look()
            await asyncio.sleep(0.1)


# All together.


class Rig:
    """A stream, a store, a webhook, and as many `serve` as a test starts."""

    def __init__(self, folder: Path, broker: Broker, database_url: str, receiver: Receiver, seed: int) -> None:
        self.broker = broker
        self.database = Database(database_url)
        self.receiver = receiver
        self.witness = Witness(broker, self.database)
        self.chance = random.Random(seed)
        self.expected = Expected()
        self.published = 0
        self.kills = 0
        self.in_flight: Counter[str] = Counter()
        """At how many kills each id was claimed by a dispatcher: so often it may come again."""
        self.serves: list[Serve] = []
        self._folder = folder
        self._orders = make_orders(10**9, seed, self.expected)
        self._load: asyncio.Task[None] | None = None

    def serve(self, **settings: Any) -> Serve:
        """Another replica, not yet started."""
        target = {"webhook": {"url": self.receiver.url, "timeout": LEASE - 2}}
        match = {"region": ["eu"], "amount": [{"numeric": [">", 100]}]}
        triggers: dict[str, dict[str, Any]] = {
            "large-eu-orders": {"match": match},
            REJECTING: {"class": "headrace.app.demo.filters:ExpressShipping"},
            "audit": {"class": "headrace.app.demo.filters:Audit"},
        }
        config = {
            "store": {"url": self.database.url},
            "dispatch": {"lease_seconds": LEASE},
            "streams": {"orders": self.broker.stream},
            "triggers": {name: trigger | {"stream": "orders", "target": target} for name, trigger in triggers.items()},
        }
        serve = Serve(self._folder, f"serve-{len(self.serves)}", config | settings)
        self.serves.append(serve)
        return serve

    # Load.

    @property
    def handled(self) -> int:
        return len(self.receiver.ids)

    async def publish(self, count: int = BATCH) -> None:
        messages = list(islice(self._orders, count))
        await self.broker.publish(messages)
        self.published += count

    @asynccontextmanager
    async def load(self, backlog: int = 400) -> AsyncIterator[None]:
        """Publish all the while, so that about `backlog` events are always on their way."""
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(self._keep_busy(backlog)), group.create_task(self.witness.watch())
            try:
                yield
            except TimeoutError:
                await self.reckon()  # says better what is the matter
                raise
            finally:
                for task in tasks:
                    task.cancel()

    async def _keep_busy(self, backlog: int) -> None:
        while True:
            if self.expected.events - self.handled < backlog:
                await asyncio.shield(asyncio.ensure_future(self.publish()))
            else:
                await asyncio.sleep(0.02)

    async def progress(self, events: int = 1) -> None:
        """Wait until the webhook has handled so many more."""
        wanted = self.handled + events
        await self.until(lambda: self.handled >= wanted)

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], seconds: float = PATIENCE) -> None:
        await eventually(condition, seconds)

    async def all_until_now_settled(self) -> None:
        """Wait until what is published by now is settled, while the load goes on."""
        orders = set(range(1, self.published + 1))
        await self.until(lambda: orders <= self.witness.settled_by.keys())

    async def until_count(self, table: str, count: int) -> None:
        async def has() -> bool:
            return await self.database.count(table) >= count

        await eventually(has, PATIENCE)

    # Kills.

    def moments(self) -> Iterator[Callable[[Serve], Awaitable[object]]]:
        """Ways to wait for a moment to kill a process that was just started, by lot, each of them in its turn."""
        while True:
            ways = [self._starting, self._dispatching, self._storing, self._settling]
            self.chance.shuffle(ways)
            yield from ways

    async def _starting(self, serve: Serve) -> None:
        """It opens its streams, and is not ready yet, or only just."""
        await eventually(lambda: serve.says("serving"), READY_SECONDS)

    async def _dispatching(self, serve: Serve) -> None:
        """The webhook has just been called so many times."""
        await serve.becomes_ready()
        await self.progress(self.chance.randint(1, 500))

    async def _storing(self, serve: Serve) -> None:
        """So many units more are stored."""
        await serve.becomes_ready()
        await self.until_count("headrace_unit", await self.database.count("headrace_unit") + self.chance.randint(1, 500))

    async def _settling(self, serve: Serve) -> None:
        """So many orders more are settled."""
        await serve.becomes_ready()
        wanted = len(self.witness.settled_by) + self.chance.randint(1, 300)
        await self.until(lambda: len(self.witness.settled_by) >= wanted)

    async def kill(self, serve: Serve) -> None:
        """SIGKILL, and note what it had in flight."""
        await serve.kill()
        self.kills += 1
        self.in_flight.update(await self.database.being_dispatched())
        await self.witness.look()  # nothing moves now, if it was the only one

    # The end.

    async def settle(self) -> None:
        """Wait until all that was published is handled, dead or settled, and marked so. Fails when nothing moves any more."""
        last: tuple[int, ...] = ()
        loop = asyncio.get_running_loop()
        moved = loop.time()
        while loop.time() - moved < PATIENCE:
            dead = await self.database.count("headrace_dead_letter")
            open_events = await self.database.count("headrace_event WHERE state <> 'delivered'")
            drained = await self.broker.is_drained()
            if drained and not open_events and self.handled >= self.expected.events and dead >= len(self.expected.rejected):
                return
            for serve in self.serves:
                if serve.is_meant_to_run:
                    serve.check()
            if (now := (self.handled, dead, open_events)) != last:
                last, moved = now, loop.time()
            await asyncio.sleep(0.1)
        await self.reckon()  # says what is missing
        raise AssertionError("the broker holds back what is done with")

    async def reckon(self) -> str:
        """Check that everything is there once and nothing else. Returns the figures."""
        stored = await Stored.read(self.database)
        works = {(trigger, number) for trigger, numbers in self.expected.derived.items() for number in numbers}
        required = works | {(REJECTING, number) for number in self.expected.rejected}
        too_early = [
            (work, stored.units.get(work))
            for work in required
            if (settled := self.witness.settled_by.get(work[1])) is not None and stored.units.get(work, inf) > settled
        ]
        assert self.witness.settled_by
        assert not too_early, f"{len(too_early)} settled before they were stored, or never stored: {too_early[:5]}"
        _same("stored", Counter(works), stored.events)
        _same("dead letters", Counter((REJECTING, number, "rejected") for number in self.expected.rejected), stored.dead)
        assert self.receiver.unreadable == 0
        _same("handled", Counter(works), Counter(self.receiver.work.values()))
        _same("ids", Counter(list(stored.ids)), Counter(list(self.receiver.ids)))
        for event_id, (trigger, number) in stored.ids.items():
            if (message_id := self.broker.message_id(number)) is not None:
                assert event_id == f"{trigger}:{message_id}:0"
        assert set(stored.states) == {"delivered"}, stored.states

        repeated = {event_id: calls - 1 for event_id, calls in self.receiver.ids.items() if calls > 1}
        beyond = {event_id: calls for event_id, calls in repeated.items() if calls > self.in_flight[event_id]}
        assert not beyond, f"{len(beyond)} of {len(repeated)} came again without a kill: {list(beyond.items())[:5]}"

        assert await self.broker.is_drained()
        return (
            f"{self.published} messages, {len(works)} events, {len(self.expected.rejected)} rejected, {self.kills} kills, "
            f"{sum(repeated.values())} repeats, {self.witness.looks} looks at the broker"
        )


def _same(what: str, expected: Counter[Any], found: Counter[Any]) -> None:
    lost, extra = expected - found, found - expected
    assert not lost, f"{what}: {lost.total()} lost: {list(lost)[:5]}"
    assert not extra, f"{what}: {extra.total()} doubled or without a reason: {list(extra)[:5]}"


@asynccontextmanager
async def rig_on(folder: Path, broker: Broker, database_url: str, seed: int) -> AsyncIterator[Rig]:
    """A rig whose processes do not outlive it."""
    async with AsyncExitStack() as stack:
        receiver = Receiver()
        await receiver.start()
        stack.push_async_callback(receiver.aclose)
        rig = Rig(folder, broker, database_url, receiver, seed)
        try:
            yield rig
        finally:
            for serve in rig.serves:
                await serve.aclose()
