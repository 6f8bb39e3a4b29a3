"""A server as a process of ours: it has a folder for its data, and does not outlive us.

Beside each server a guard runs, a shell that waits for the end of a pipe that we hold open. However we end, even by
SIGKILL, the pipe closes, and the guard ends the server and removes its folder.
"""

from __future__ import annotations

import contextlib
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.testing.brokers.server import BrokerUnavailable, Kind, ProgramMissing

STOP_SECONDS = 20.0
LOG_LINES = 20

_GUARD = 'read -r _; kill -KILL "$1" 2>/dev/null; rm -rf "$2"'


def free_port() -> int:
    """A loopback port that nobody uses, below those the system hands to outgoing connections.

    One of the system's own choice could be taken by some client's socket while its server is down for a restart.
    """
    for port in random.sample(range(12_000, 32_000), 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise BrokerUnavailable("no free port between 12000 and 32000")


def find_program(*candidates: str | Path, purpose: str) -> str:
    """The first of these programs that is there, by path or on PATH. Raises `ProgramMissing`, which says what it is for."""
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    names = sorted({Path(candidate).name for candidate in candidates})
    raise ProgramMissing(f"{' or '.join(names)} is not installed ({purpose})")


def run_to_end(command: Sequence[str], **options: Any) -> str:
    """Run a tool, and return what it printed on either stream. Raises `BrokerUnavailable` if it fails; `options` are Popen's."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
    except OSError as error:
        raise BrokerUnavailable(f"{command[0]}: {error}") from error
    if done.returncode:
        raise BrokerUnavailable(f"{' '.join(command[:2])} failed:\n{_tail(done.stdout)}")
    return str(done.stdout)


class LocalProcess:
    """A server in a process group of its own, run in a folder of its own: paths in `command` may be relative to it."""

    kind: Kind = "local"

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"headrace-{name}-"))
        self._command = command
        self._user = user
        self._environment = environment
        self._stop_signal = stop_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        if user is not None:
            shutil.chown(self.folder, user)

    def run(self, command: Sequence[str]) -> str:
        """As `run_to_end`, with the server's user, folder and environment."""
        return run_to_end(command, cwd=self.folder, env=self._environment, **_identity(self._user))

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests: they end the server
                **_identity(self._user),
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self._process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def stop(self) -> None:
        self._end(self._stop_signal)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return _tail((self.folder / "server.log").read_text(errors="replace"))
        return ""

    def _end(self, how: signal.Signals) -> None:
        process, guard = self._process, self._guard
        self._process = self._guard = None
        if process is None or guard is None:
            return
        guard.kill()
        guard.communicate()
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _identity(user: str | None) -> dict[str, Any]:
    """The Popen arguments that make a process run as this user."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-LOG_LINES:])
