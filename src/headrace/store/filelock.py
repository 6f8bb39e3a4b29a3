"""A lock on a file that the operating system takes back when its process dies, however it dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.errors import StoreInUse, StoreUnavailable


class FileLock:
    """Held from `acquire` to `release`. The file stays: removing it would let two processes lock two files of one name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises `StoreInUse` while another process holds it, `StoreUnavailable` where the file cannot be opened."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreUnavailable(f"the lock file {self._path} cannot be opened: {error.strerror}") from error
        try:
            _lock(descriptor)
        except OSError:
            holder = os.pread(descriptor, 20, 1).decode("ascii", "replace").strip() if sys.platform != "win32" else ""
            os.close(descriptor)
            by = f" by process {holder}" if holder else ""
            raise StoreInUse(
                f"{self._path.with_suffix('')} is in use{by}: one `headrace serve` a SQLite file; replicas share PostgreSQL"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f" {os.getpid()}\n".encode())  # the first byte is what Windows locks
        self._descriptor = descriptor

    def release(self) -> None:
        """Give it up, if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
