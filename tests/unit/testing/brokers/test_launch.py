"""Which way of getting a server is taken, and what is said when none is open."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest

from headrace.testing import brokers
from headrace.testing.brokers import BrokerUnavailable, Server, ServerFailed, launch
from headrace.testing.brokers.cache import cache_folder
from headrace.testing.brokers.process import LocalProcess
from headrace.testing.brokers.server import Given


class Echo(Server):
    """A server that is there when its file is; the class says which ways are open."""

    name = "echo"
    title = "Echo"
    image = "echo:1"
    packages = ("echo", "echo-data")
    has_docker = True
    has_local = True
    is_answering = True

    @classmethod
    def at_address(cls, address: str, variable: str) -> Self:
        server = cls(Given(variable), address, "1.0")
        server._wait_until_it_answers(seconds=0.05)
        return server

    @classmethod
    def in_docker(cls, settings: Mapping[str, str]) -> Self:
        if not cls.has_docker:
            raise BrokerUnavailable("no engine")
        return cls._launched("docker", settings)

    @classmethod
    def on_this_machine(cls, settings: Mapping[str, str]) -> Self:
        if not cls.has_local:
            raise BrokerUnavailable("no program")
        return cls._launched("local", settings)

    @classmethod
    def _launched(cls, where: str, settings: Mapping[str, str]) -> Self:
        script = settings.get("script", "exec sleep 1000")
        server = cls(LocalProcess("echo", ["sh", "-c", script]), where, "2.0")
        try:
            server._start()
        except BaseException:
            server.close()
            raise
        return server

    @classmethod
    def prepare(cls) -> None:
        """Nothing is needed."""

    def answers(self) -> bool:
        return self.is_answering


@pytest.fixture(autouse=True)
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "SERVERS", {"echo": Echo})
    monkeypatch.delenv("HEADRACE_ECHO", raising=False)


def test_an_address_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address in the environment wins; that server is not ours to stop, and closing it does nothing."""
    monkeypatch.setenv("HEADRACE_ECHO", "far:1")
    with launch("echo") as server:
        assert (server.address, server.kind) == ("far:1", "address")
        for act in (server.stop, server.kill, server.restart):
            with pytest.raises(ServerFailed, match="HEADRACE_ECHO names is not ours"):
                act()


def test_a_server_of_ones_own_is_never_the_one_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for one that may be killed, or with settings, the address is passed by."""
    monkeypatch.setenv("HEADRACE_ECHO", "far:1")
    with launch("echo", own=True) as server:
        assert server.address == "docker"
    with launch("echo", settings={"a": "b"}) as server:
        assert server.address == "docker"


def test_an_address_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody named it: another server in its place would hide that it is away."""
    monkeypatch.setenv("HEADRACE_ECHO", "far:1")
    monkeypatch.setattr(Echo, "is_answering", False)
    with pytest.raises(ServerFailed, match="does not answer at far:1"):
        launch("echo")


def test_docker_comes_before_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is the last way."""
    with launch("echo") as server:
        assert server.address == "docker"
    monkeypatch.setattr(Echo, "has_docker", False)
    with launch("echo") as server:
        assert server.address == "local"
        assert server.description == "Echo 2.0 (a local process)"


def test_with_no_way_open_each_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message of a skip says what would help."""
    monkeypatch.setattr(Echo, "has_docker", False)
    monkeypatch.setattr(Echo, "has_local", False)
    with pytest.raises(BrokerUnavailable, match="no Echo: HEADRACE_ECHO is not set; no engine; no program"):
        launch("echo")


def test_an_unknown_server_is_wrong_use() -> None:
    """The names that there are, are listed."""
    with pytest.raises(ValueError, match="unknown server 'ecco': there are echo"):
        launch("ecco")


def test_a_server_that_ends_while_it_starts_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is in the error, and nothing is left behind."""
    monkeypatch.setattr(Echo, "is_answering", False)
    with pytest.raises(ServerFailed, match=r"Echo ended while it started:\nport taken"):
        launch("echo", settings={"script": "echo port taken; exit 1"})


@pytest.mark.parametrize(
    ("value", "names"), [("", set()), ("kafka", {"kafka"}), (" kafka, postgresql,", {"kafka", "postgresql"})]
)
def test_required_servers_are_a_comma_separated_list(value: str, names: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces and a trailing comma are harmless."""
    monkeypatch.setenv("HEADRACE_REQUIRE_BROKERS", value)
    assert brokers.required() == names


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`HEADRACE_CACHE`, made if need be; without it, `.cache` at the top of the checkout."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "a" / "b"))
    assert cache_folder() == tmp_path / "a" / "b"
    assert cache_folder().is_dir()
    monkeypatch.delenv("HEADRACE_CACHE")
    assert cache_folder() == Path(__file__).parents[4] / ".cache"
