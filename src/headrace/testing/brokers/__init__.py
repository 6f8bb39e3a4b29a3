"""Real servers for tests: an address from the environment, a Docker container, or a process on this machine.

    with launch("kafka") as kafka:
        ...  # kafka.address, kafka.create_topic("orders", partitions=4)

The first way that is open is taken, in that order. `HEADRACE_KAFKA=host:port` and
`HEADRACE_POSTGRESQL=postgresql://user:password@host/database` are the addresses. A process needs Java 17 and Maven for Kafka and
the package `postgresql` for PostgreSQL; `python -m headrace.testing.brokers` says what there is, and installs what is missing
where it may. Everything listens on the loopback only, on ports that were free.

`mock_kafka` is another thing: a Kafka that fails as it is told. Tests get all of this through fixtures:
`headrace.testing.pytest_plugin`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal, overload

from headrace.testing.brokers.kafka import Kafka
from headrace.testing.brokers.postgresql import PostgreSQL
from headrace.testing.brokers.server import BrokerUnavailable, Server, ServerFailed

__all__ = [
    "SERVERS",
    "BrokerUnavailable",
    "Kafka",
    "PostgreSQL",
    "Server",
    "ServerFailed",
    "address_variable",
    "launch",
    "required",
]

SERVERS: Mapping[str, type[Server]] = {server.name: server for server in (Kafka, PostgreSQL)}


def address_variable(name: str) -> str:
    """The environment variable that gives the address of such a server."""
    return f"HEADRACE_{name.upper()}"


def required() -> frozenset[str]:
    """The servers that `HEADRACE_REQUIRE_BROKERS` names: a test that lacks one of them fails instead of being skipped."""
    return frozenset(word.strip() for word in os.environ.get("HEADRACE_REQUIRE_BROKERS", "").split(",") if word.strip())


@overload
def launch(name: Literal["kafka"], *, own: bool = False, settings: Mapping[str, str] | None = None) -> Kafka: ...
@overload
def launch(name: Literal["postgresql"], *, own: bool = False, settings: Mapping[str, str] | None = None) -> PostgreSQL: ...
@overload
def launch(name: str, *, own: bool = False, settings: Mapping[str, str] | None = None) -> Server: ...
def launch(name: str, *, own: bool = False, settings: Mapping[str, str] | None = None) -> Server:
    """Return a server that answers. Close it, or use it as a context manager.

    `own` asks for one that may be stopped and killed: never the one at an address. `settings` are the server's own
    (`server.properties`, `postgresql.conf`), on top of ours, and imply `own`. Blocks for seconds; the first Kafka on a machine
    for as long as its jars take to come.

    Raises `BrokerUnavailable`, which says for each way why it is not open, and `ServerFailed` where a server that should
    answer does not.
    """
    if name not in SERVERS:
        raise ValueError(f"unknown server {name!r}: there are {', '.join(SERVERS)}")
    server, variable = SERVERS[name], address_variable(name)
    if (address := os.environ.get(variable)) and not (own or settings):
        return server.at_address(address, variable)
    reasons = [] if address else [f"{variable} is not set"]
    for way in (server.in_docker, server.on_this_machine):
        try:
            return way(settings or {})
        except BrokerUnavailable as error:
            reasons.append(str(error))
    raise BrokerUnavailable(f"no {server.title}: {'; '.join(reasons)}")
