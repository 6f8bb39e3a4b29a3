"""PostgreSQL: one server for many tests, each with a database of its own.

As a process it needs PostgreSQL's programs (Debian's package `postgresql`). It keeps `fsync` on: what a test stores
survives as it would in production.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

from headrace.testing.brokers.container import Container
from headrace.testing.brokers.process import LocalProcess, find_program, free_port
from headrace.testing.brokers.server import Backend, Given, Server

DEBIAN = Path("/usr/lib/postgresql")
"""Where Debian has its programs, a folder for each version; most of them are not on PATH."""

USER = PASSWORD = DATABASE = "headrace"

DEFAULT_SETTINGS: Mapping[str, str] = {
    "shared_buffers": "32MB",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "log_min_messages": "warning",
}

_CUT_OFF_OTHERS = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_EMPTY = """
DO $$ DECLARE
    name name;
BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
    CREATE SCHEMA public;
    PERFORM pg_stat_reset();
END $$
"""


class PostgreSQL(Server):
    """A PostgreSQL. `address` is the URL of a database whose user may create others."""

    name: ClassVar[str] = "postgresql"
    title: ClassVar[str] = "PostgreSQL"
    image: ClassVar[str] = "postgres:17-alpine"
    packages: ClassVar[tuple[str, ...]] = ("postgresql",)

    def __init__(self, backend: Backend, address: str, version: str) -> None:
        super().__init__(backend, address, version)
        self._empty: list[str] = []

    @classmethod
    def at_address(cls, address: str, variable: str) -> Self:
        server = cls(Given(variable), address, "")
        server._wait_until_it_answers()
        server.version = server._ask_version()
        return server

    @classmethod
    def in_docker(cls, settings: Mapping[str, str]) -> Self:
        port = free_port()
        environment = {"POSTGRES_USER": USER, "POSTGRES_PASSWORD": PASSWORD, "POSTGRES_DB": DATABASE}
        command = ["postgres", *_options(settings)]
        return cls._started(Container(cls.image, port=5432, host_port=port, environment=environment, command=command), port)

    @classmethod
    def prepare(cls) -> None:
        find_programs()

    @classmethod
    def on_this_machine(cls, settings: Mapping[str, str]) -> Self:
        programs = find_programs()
        port = free_port()
        options = [f"--port={port}", "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", *_options(settings)]
        process = LocalProcess(
            "postgresql",
            [str(programs / "postgres"), "-D", "data", *options],
            user="postgres" if os.geteuid() == 0 else None,  # it refuses to run as root
            environment={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stop_signal=signal.SIGINT,  # its "fast" shutdown: it does not wait for clients to leave
        )
        try:
            (process.folder / "password").write_text(PASSWORD)
            process.run(
                [
                    str(programs / "initdb"),
                    "--pgdata=data",
                    f"--username={USER}",
                    "--pwfile=password",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--no-instructions",
                    "--no-sync",
                ]
            )
        except BaseException:
            process.close()
            raise
        return cls._started(process, port)

    @classmethod
    def _started(cls, backend: Backend, port: int) -> Self:
        server = cls(backend, f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres", "")
        try:
            server._start()
            server.version = server._ask_version()
        except BaseException:
            backend.close()
            raise
        return server

    @property
    def public_address(self) -> str:
        parts = urlsplit(self.address)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def answers(self) -> bool:
        import asyncpg

        try:
            self._do(self.address, "SELECT 1")
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        return True

    def create_database(self) -> str:
        """Give an empty database and return its URL. Synchronous; call it through a thread where a loop must go on.

        One that `drop_database` emptied comes before a new one: making and removing 300 files takes longer than a test.
        """
        if self._empty:
            return self._empty.pop()
        name = f"headrace_{uuid.uuid4().hex}"
        self._do(self.address, f"CREATE DATABASE {name} TEMPLATE template0")
        return urlunsplit(urlsplit(self.address)._replace(path=f"/{name}"))

    def drop_database(self, url: str) -> None:
        """Take back a database that `create_database` gave: whoever is still connected is cut off, and nothing stays
        in it, its statistics neither."""
        self._do(url, _CUT_OFF_OTHERS)
        self._do(url, _EMPTY)
        self._empty.append(url)

    def close(self) -> None:
        if self.kind == "address":  # a server of ours takes its databases along
            for url in self._empty:
                self._do(self.address, f"DROP DATABASE {urlsplit(url).path[1:]} WITH (FORCE)")
        self._empty.clear()
        super().close()

    def _ask_version(self) -> str:
        shown = str(self._do(self.address, "SHOW server_version"))
        return shown.split()[0]

    def _do(self, url: str, statement: str) -> Any:
        """Run a statement on a connection, and a loop, of its own, so that it may be called from anywhere; its first value."""
        import asyncpg

        async def connected() -> Any:
            connection = await asyncpg.connect(url, timeout=10.0)
            try:
                return await connection.fetchval(statement)
            finally:
                await connection.close(timeout=10.0)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(asyncio.run, connected()).result()


def find_programs() -> Path:
    """The folder of `initdb` and `postgres`: the newest of Debian's, else the one on PATH. Raises `BrokerUnavailable`."""
    debian = sorted(DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]), reverse=True)
    initdb = find_program(*debian, "initdb", purpose="the package postgresql brings it")
    return Path(initdb).resolve().parent


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for key, value in {**DEFAULT_SETTINGS, **settings}.items() for word in ("-c", f"{key}={value}")]
