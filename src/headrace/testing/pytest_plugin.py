"""pytest fixtures that give tests real servers, and a summary that says which they were.

Load it with `-p headrace.testing.pytest_plugin` (in `addopts`, say). Needs the extra `headrace[testing]`.

| fixture | lives | gives |
|---|---|---|
| `kafka`, `postgresql` | a session | the server that all tests share: make a topic or a database of your own on it |
| `own_server` | a test | `own_server("kafka")` launches one that the test may stop, kill and restart |
| `mock_kafka` | a test | a Kafka that fails as it is told |
| `database_url` | a test | the URL of an empty database: the test runs on SQLite and again on PostgreSQL |

A server starts when a test first asks for it. Where none is to be had the test is skipped, with the reason, or fails if
`HEADRACE_REQUIRE_BROKERS` names the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.testing.brokers import BrokerUnavailable, Kafka, PostgreSQL, Server, launch, required
from headrace.testing.brokers.mock_kafka import MockKafka, librdkafka_version

OwnServer = Callable[..., Server]
"""The type of the fixture `own_server`."""

_used = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_used] = {}


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[Kafka]:
    """An Apache Kafka for all tests of the session."""
    with _launch(pytestconfig, "kafka") as server:
        assert isinstance(server, Kafka)
        yield server


@pytest.fixture(scope="session")
def postgresql(pytestconfig: pytest.Config) -> Iterator[PostgreSQL]:
    """A PostgreSQL for all tests of the session."""
    with _launch(pytestconfig, "postgresql") as server:
        assert isinstance(server, PostgreSQL)
        yield server


@pytest.fixture
def own_server(pytestconfig: pytest.Config) -> Iterator[OwnServer]:
    """Launch a server of the test's own by name, with `settings` of its own perhaps; it ends with the test."""
    with ExitStack() as servers:

        def start(name: str, settings: Mapping[str, str] | None = None) -> Server:
            return servers.enter_context(_launch(pytestconfig, name, own=True, settings=settings))

        yield start


@pytest.fixture
def mock_kafka(pytestconfig: pytest.Config) -> Iterator[MockKafka]:
    """A mock cluster of one broker, without topics."""
    pytestconfig.stash[_used]["mock kafka"] = f"the mock cluster of librdkafka {librdkafka_version()}"
    with MockKafka() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'headrace.db'}"
        return
    server: PostgreSQL = request.getfixturevalue("postgresql")
    url = server.create_database()
    yield url
    server.drop_database(url)


def _launch(config: pytest.Config, name: str, *, own: bool = False, settings: Mapping[str, str] | None = None) -> Server:
    try:
        server = launch(name, own=own, settings=settings)
    except BrokerUnavailable as error:
        if name in required():
            pytest.fail(f"HEADRACE_REQUIRE_BROKERS names {name}, but there is {error}", pytrace=False)
        pytest.skip(str(error))
    config.stash[_used][name] = server.description
    return server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which servers the run used, and what was skipped and why."""
    terminalreporter.section("servers")
    for name, description in sorted(config.stash[_used].items()):
        terminalreporter.write_line(f"{name}: {description}")
    if not config.stash[_used]:
        terminalreporter.write_line("none: no test asked for one that could be had")
    skips = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in skips.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
    if not skips:
        terminalreporter.write_line("skipped: nothing")
