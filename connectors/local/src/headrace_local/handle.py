"""A file's one connection and one thread in this process, shared by all that use the file.

SQLite has one writer at a time, so a second connection would only wait for the first, and publications that come together
can share one commit. `:memory:` needs it anyway: there the connection is the database.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from headrace import HeadraceError, Message
from headrace_local.config import IN_MEMORY
from headrace_local.queue_file import QueueFile

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Publication:
    queue: str
    messages: Sequence[Message]
    error: Exception | None = None


class Handle:
    """Use `Handle.get(path)`, and `aclose` it as often. The file is opened by the first call."""

    _open: ClassVar[dict[str, Handle]] = {}
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: str) -> None:
        self.path = path
        self._users = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-local")
        self._file: QueueFile | None = None
        self._publications: deque[_Publication] = deque()
        self._listeners: set[Callable[[str], None]] = set()

    @classmethod
    def get(cls, path: str) -> Handle:
        if path != IN_MEMORY:
            path = os.path.realpath(path)
        with cls._lock:
            handle = cls._open.get(path)
            if handle is None:
                handle = cls._open[path] = cls(path)
                handle._users = 1 if path == IN_MEMORY else 0  # which keeps it for the life of the process
            handle._users += 1
        return handle

    async def aclose(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            del self._open[self.path]
        closing = self._executor.submit(self._close)  # not lost if we are cancelled at the await
        self._executor.shutdown(wait=False)
        await asyncio.wrap_future(closing)

    async def run(self, call: Callable[Concatenate[QueueFile, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of `QueueFile` in the file's thread. Calls are made in order. A call that has begun is not cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: call(self._opened(), *args, **kwargs))

    async def publish(self, queue: str, messages: Sequence[Message]) -> None:
        """Append messages to a queue, all or none, and wake its consumers in this process. Returns when they are on disk.

        Cancelled, it may have appended them or not.
        """
        publication = _Publication(queue, messages)
        self._publications.append(publication)
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._publish_waiting, publication)
        finally:
            with suppress(ValueError):  # cancelled before its turn: not to be stored by the next
                self._publications.remove(publication)

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have the listener called with a queue's name, in the file's thread, when something was published to it."""
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[str], None]) -> None:
        self._listeners.discard(listener)

    def _publish_waiting(self, wanted: _Publication) -> None:
        """Store everything that waits; the first of several publications does it for all."""
        together: dict[str, list[_Publication]] = {}
        while self._publications:
            publication = self._publications.popleft()
            together.setdefault(publication.queue, []).append(publication)
        for queue, publications in together.items():
            self._store(queue, publications)
            for listener in tuple(self._listeners):
                listener(queue)
        if wanted.error is not None:
            raise wanted.error

    def _store(self, queue: str, publications: list[_Publication]) -> None:
        try:
            self._opened().publish(queue, [message for publication in publications for message in publication.messages])
        except Exception as error:
            if len(publications) > 1 and not isinstance(error, HeadraceError):
                for publication in publications:  # a message that cannot be stored fails its own publication only
                    self._store(queue, [publication])
                return
            for publication in publications:
                publication.error = error

    def _opened(self) -> QueueFile:
        if self._file is None:
            self._file = QueueFile(self.path)
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
