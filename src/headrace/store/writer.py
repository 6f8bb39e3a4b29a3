"""Group commits: while one group is being stored, the next one gathers.

A group is one transaction, so a unit is stored whole or not at all; units are unique by their key, so a group whose COMMIT
was answered by silence is simply stored again. What the database refuses for its content is found by halving its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import StoreUnavailable, Unstorable
from headrace.store.model import GroupReport, Unit
from headrace.store.units import EncodedUnit, encode_unit, group_of

if TYPE_CHECKING:
    from headrace.store.store import Store

log = logging.getLogger(__name__)

MAX_GROUP_BYTES: Final = 16 * 2**20
_FIRST_BACKOFF: Final = 0.05
_MAX_BACKOFF: Final = 5.0


class Writer:
    """Stores units in the order they come, in groups, and says which are stored. Callbacks run on the event loop.

    While the database is away it tries again for ever, with backoff: nothing is lost, and nothing is reported stored that is
    not. Bounding what waits here is the submitter's job: see `pending_units` and `pending_bytes`.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_stored: Callable[[list[Unit]], None],
        on_refused: Callable[[Unit, Exception], None],
        on_available: Callable[[bool], None] = lambda available: None,
        on_group: Callable[[GroupReport], None] = lambda report: None,
        max_group: int = 1000,
    ) -> None:
        """Starts at once, so a loop must be running. `max_group`: rows of one group, units and events; a single unit may have
        more."""
        self._store = store
        self._on_stored = on_stored
        self._on_refused = on_refused
        self._on_available = on_available
        self._on_group = on_group
        self._max_group = max_group

        self._queue: deque[EncodedUnit] = deque()
        self._submitted = 0
        self._answered = 0
        self._pending_bytes = 0
        self._available = True
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="headrace-writer")

    def submit(self, unit: Unit) -> None:
        """Take a unit; never blocks. It ends in `on_stored` (also if it was stored before) or in `on_refused` with
        `Unstorable`, later, never from within this call. Its payloads are encoded now and may be changed afterwards."""
        if self._closing.is_set():
            raise RuntimeError("the writer is closed")
        try:
            encoded = encode_unit(unit, self._store.sealer, self._store.max_payload_bytes)
        except Unstorable as error:
            self._loop.call_soon(self._tell, self._on_refused, unit, error)
            return
        self._queue.append(encoded)
        self._submitted += 1
        self._pending_bytes += encoded.size
        self._wake.set()

    @property
    def pending_units(self) -> int:
        """Units that wait to be stored."""
        return self._submitted - self._answered

    @property
    def pending_bytes(self) -> int:
        """Their size, encoded."""
        return self._pending_bytes

    @property
    def available(self) -> bool:
        """False from the first failed try of a group until one succeeds."""
        return self._available

    async def flush(self) -> None:
        """Wait until all that was submitted before is answered. Give it a deadline: the database may be away. Cancelling it
        stops the waiting only."""
        await asyncio.sleep(0)  # refusals are a turn of the loop away
        if self.pending_units and not self._task.done():
            future: asyncio.Future[None] = self._loop.create_future()
            self._flushes.append((self._submitted, future))
            await future

    async def aclose(self) -> None:
        """Stop. Waits for the transaction under way (at most `close_timeout` of the store); what is not stored by then is
        dropped without an answer, and comes again with its redelivery. Flush first."""
        self._closing.set()
        self._wake.set()
        try:
            await asyncio.wait({self._task}, timeout=self._store.close_timeout)
        finally:
            self._task.cancel()
            for _, future in self._flushes:
                future.cancel()
        await asyncio.wait({self._task}, timeout=1.0)

    async def _run(self) -> None:
        while not self._closing.is_set():
            await self._wake.wait()
            self._wake.clear()
            while self._queue and not self._closing.is_set():
                await self._store_group(self._next_group())

    def _next_group(self) -> list[EncodedUnit]:
        group = [self._queue.popleft()]
        rows, size = group[0].rows, group[0].size
        while self._queue:
            rows += self._queue[0].rows
            size += self._queue[0].size
            if rows > self._max_group or size > MAX_GROUP_BYTES:
                break
            group.append(self._queue.popleft())
        return group

    async def _store_group(self, group: Sequence[EncodedUnit]) -> None:
        """Store it and answer for each of its units; returns early, and silently, only when closing."""
        try:
            if await self._commit(group):
                self._answer(group)
                self._tell(self._on_stored, [encoded.unit for encoded in group])
        except Unstorable as error:
            if len(group) > 1:
                middle = len(group) // 2
                await self._store_group(group[:middle])
                await self._store_group(group[middle:])
            else:
                self._answer(group)
                self._tell(self._on_refused, group[0].unit, error)

    async def _commit(self, group: Sequence[EncodedUnit]) -> bool:
        """Store it in one transaction, however long that takes; False when closing. Raises `Unstorable`."""
        database, attempts = self._store.database, self._store.attempts
        backoff = _FIRST_BACKOFF
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                job = partial(database.sql.insert_group, group=group_of(group, attempts.known))
                stored = await database.write(job)
            except Unstorable:
                self._set_available(True)
                raise
            except StoreUnavailable as error:
                self._set_available(False, error)
            except Exception as error:  # ours, not the database's: loud, and nothing is lost
                log.exception("storing a group failed")
                self._set_available(False, error)
            else:
                self._set_available(True)
                attempts.known.difference_update(encoded.key for encoded in group)
                size = sum(encoded.size for encoded in group)
                self._tell(self._on_group, GroupReport(len(group), stored.units, stored.events, size, time.monotonic() - began))
                return True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff * random.uniform(0.5, 1.0)):
                    await self._closing.wait()
            backoff = min(backoff * 2, _MAX_BACKOFF)
        return False

    def _set_available(self, available: bool, error: Exception | None = None) -> None:
        if available is not self._available:
            self._available = available
            if available:
                log.info("the store is back")
            else:
                log.warning("the store is away, and %d units wait for it: %s", self.pending_units, error)
            self._tell(self._on_available, available)

    def _answer(self, group: Sequence[EncodedUnit]) -> None:
        self._answered += len(group)
        self._pending_bytes -= sum(encoded.size for encoded in group)
        while self._flushes and self._flushes[0][0] <= self._answered:
            _, future = self._flushes.pop(0)
            if not future.done():
                future.set_result(None)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back; an error of the callback's is its owner's, and stops nothing here."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("a callback of the writer failed")
