"""A server that tests talk to, whoever runs it.

`Server` is what a test holds; behind it a `Backend` starts and ends the thing itself: a process of ours (`process.py`), a
container (`container.py`), or nobody (`Given`: it runs elsewhere, at an address from the environment).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, Literal, Protocol, Self

from headrace.testing.waiting import wait_until

Kind = Literal["address", "docker", "local"]

START_SECONDS = 60.0
"""How long a server may take until it answers."""


class BrokerUnavailable(Exception):
    """This way of getting a server is not open on this machine; the message says what is missing."""


class ProgramMissing(BrokerUnavailable):
    """A program is not installed, or too old: its package would help."""


class ServerFailed(Exception):
    """A server that should be there does not start or does not answer; the message has the end of its log."""


class Backend(Protocol):
    """Runs a server. `start` comes again after `stop` or `kill`: on the same port, with the same data."""

    kind: Kind

    def start(self) -> None: ...

    def stop(self) -> None:
        """End it as its manual says, within a deadline; then by force."""

    def kill(self) -> None:
        """End it at once (SIGKILL)."""

    def close(self) -> None:
        """End it and remove its data."""

    def is_running(self) -> bool: ...

    def log(self) -> str:
        """The last lines of what it printed."""


class Given:
    """The server at an address that somebody gave: it is not ours to stop."""

    kind: Kind = "address"

    def __init__(self, variable: str) -> None:
        self._variable = variable

    def start(self) -> None:
        self._refuse()

    def stop(self) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def close(self) -> None:
        """Leave it as it is."""

    def is_running(self) -> bool:
        return True

    def log(self) -> str:
        return ""

    def _refuse(self) -> None:
        raise ServerFailed(f"the server that {self._variable} names is not ours to stop; launch one with own=True")


class Server(ABC):
    """A server, answering. A context manager: leaving it ends the server and removes its data (one given by address stays)."""

    name: ClassVar[str]
    """The word for it: in `launch`, in `HEADRACE_REQUIRE_BROKERS`, and as `HEADRACE_<NAME>` in the environment."""
    title: ClassVar[str]
    image: ClassVar[str]
    """The Docker image that `in_docker` runs."""
    packages: ClassVar[tuple[str, ...]]
    """The Debian packages that `on_this_machine` needs."""

    def __init__(self, backend: Backend, address: str, version: str) -> None:
        self._backend = backend
        self.address = address
        self.version = version
        """As the server, or its package, tells it."""

    @classmethod
    @abstractmethod
    def at_address(cls, address: str, variable: str) -> Self:
        """The server that runs there already."""

    @classmethod
    @abstractmethod
    def in_docker(cls, settings: Mapping[str, str]) -> Self:
        """Start it in a container. Raises `BrokerUnavailable`."""

    @classmethod
    @abstractmethod
    def on_this_machine(cls, settings: Mapping[str, str]) -> Self:
        """Start it as a process. Raises `BrokerUnavailable`."""

    @classmethod
    @abstractmethod
    def prepare(cls) -> None:
        """Fetch what `on_this_machine` needs. Raises `BrokerUnavailable`, which names a program that is missing."""

    @property
    def kind(self) -> Kind:
        return self._backend.kind

    @property
    def description(self) -> str:
        """Name, version and place, in a line."""
        place = {"address": f"at {self.public_address}", "docker": "in Docker", "local": "a local process"}[self.kind]
        return f"{self.title} {self.version} ({place})"

    @property
    def public_address(self) -> str:
        """The address without a password."""
        return self.address

    def stop(self) -> None:
        """End it cleanly; its data stays."""
        self._backend.stop()

    def kill(self) -> None:
        """End it with SIGKILL; its data stays as it was that moment."""
        self._backend.kill()

    def restart(self) -> None:
        """Start it on the same port with its data, having ended it cleanly if it still ran. Returns when it answers."""
        if self._backend.is_running():
            self._backend.stop()
        self._start()

    def close(self) -> None:
        """End it and remove its data."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.description}>"

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does its work now: one quick try."""

    def _start(self) -> None:
        self._backend.start()
        self._wait_until_it_answers()

    def _wait_until_it_answers(self, seconds: float = START_SECONDS) -> None:
        try:
            wait_until(lambda: self.answers() or not self._backend.is_running(), seconds)
        except TimeoutError as error:
            where = f"at {self.public_address} after {seconds:.0f} s"
            raise ServerFailed(f"{self.title} does not answer {where}:\n{self._backend.log()}") from error
        if not self._backend.is_running():
            raise ServerFailed(f"{self.title} ended while it started:\n{self._backend.log()}")
