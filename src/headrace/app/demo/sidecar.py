"""`headrace serve` as a process of its own: started, watched, killed, stopped."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import HeadraceError

START_TIMEOUT: Final = 60.0
STOP_TIMEOUT: Final = 45.0
"""More than `shutdown_timeout`."""


class Sidecar:
    """One `serve` at a time. Its output goes to `log_file`, that of a restart behind it."""

    def __init__(self, config: Path, log_file: Path, url: str) -> None:
        self._config = config
        self._log_file = log_file
        self._url = url
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready. Raises `HeadraceError` with its last words if it does not come up."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0))
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace.app.cli", "serve", str(self._config), stdout=log, stderr=log
            )
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not await self._is_ready():
                    self.check()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise HeadraceError(f"headrace serve was not ready within {START_TIMEOUT:g} s: {self._last_words()}") from None

    def check(self) -> None:
        """Raise `HeadraceError` if the process has ended by itself."""
        if self._process is not None and self._process.returncode is not None:
            raise HeadraceError(f"headrace serve ended with code {self._process.returncode}: {self._last_words()}")

    async def kill(self) -> None:
        """SIGKILL: no drain, no goodbye."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> int:
        """SIGTERM: it drains. Returns its exit code; one that does not end is killed, and is -9."""
        if self._process is None:
            return 0
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                return await self._process.wait()
        except TimeoutError:
            await self.kill()
            return -signal.SIGKILL

    async def aclose(self) -> None:
        """Leave nothing running."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()
        if self._session is not None:
            await self._session.close()

    async def events_read(self) -> int | None:
        """Events that this process has read from the broker; None when it does not answer."""
        assert self._session is not None
        try:
            async with self._session.get(f"{self._url}/metrics") as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return None
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return int(sum(sample.value for sample in samples if sample.name == "headrace_events_read_total"))

    async def _is_ready(self) -> bool:
        assert self._session is not None
        try:
            async with self._session.get(f"{self._url}/health/ready") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _last_words(self) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines()
        return "\n".join(["", *lines[-8:]]) if lines else "(it said nothing)"


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
