"""A subscriber's stream of raw events: the thin async shell over its cursor, and `reject_shared_stream_event`.

A pull drains the segment at hand without going back to the loop. Only when there is nothing ordinary to take does it ask the
cursor, and only when there is nothing at all does it wait. A cancelled pull takes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from headrace.errors import StreamError
from headrace.streams.cursor import NOTHING, AnyCursor
from headrace.streams.ledger import Ledger

log = logging.getLogger(__name__)

_asked: WeakKeyDictionary[asyncio.Task[Any], WeakValueDictionary[int, Subscription]] = WeakKeyDictionary()
"""The subscriptions that a task has asked for events. Keeps none alive: a task may subscribe again and again."""


class Subscription(AsyncIterator[Any]):
    """The raw events of one subscriber, in fan-out order: by `async for`, or by `anext`. One task at a time may pull.

    `gated`: the broker waits for what is derived (ack mode), so an event may be rejected.
    """

    __slots__ = ("__weakref__", "_cursor", "_has_asked", "_iterator", "_ledger", "_puller", "gated")

    def __init__(self, ledger: Ledger, cursor: AnyCursor, *, gated: bool) -> None:
        self.gated = gated
        self._ledger = ledger
        self._cursor: AnyCursor | None = cursor
        self._iterator: Iterator[Any] = iter(())
        self._puller: Callable[[], asyncio.Task[Any] | None] = lambda: None
        self._has_asked = False
        self._note_task()

    def __aiter__(self) -> AsyncIterator[Any]:
        self._note_task()
        return self._drain()

    async def _drain(self) -> AsyncIterator[Any]:
        """What `async for` runs: an async generator costs a third less than a coroutine for each event. A pull that is cancelled
        in it ends it, as it ends the loop; the subscription lives on."""
        self._note_puller()
        while True:
            for raw in self._iterator:
                yield raw
            raw = None  # while it waits it keeps no event alive
            yield await self._pull()

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        if not self._has_asked:
            self._has_asked = True
            self._note_task()
        return self._take()

    async def _take(self) -> Any:
        for raw in self._iterator:
            return raw
        self._note_puller()
        return await self._pull()

    async def _pull(self) -> Any:
        """What the cursor gives next, waited for."""
        while True:
            cursor = self._cursor
            if cursor is None:
                raise StreamError("this iterator was replaced by `resume`: use the newer one")
            raw = cursor.pull()
            if self._ledger.full:
                self._ledger.made_room(cursor)
            if raw is not NOTHING:
                self._iterator = cursor.iterator
                return raw
            if cursor.waiter is not None:
                raise RuntimeError(f"two tasks pull events of subscriber {cursor.id!r} at once")
            waiter = cursor.waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                if cursor.waiter is waiter:
                    cursor.waiter = None

    def _note_task(self) -> None:
        """The current task may be the filter's."""
        if (task := asyncio.current_task()) is not None:
            _asked.setdefault(task, WeakValueDictionary())[id(self)] = self

    def _note_puller(self) -> None:
        """The current task takes the next event in hand. It need not be the filter's: on Python 3.11 `asyncio.wait_for` pulls in
        a task of its own."""
        task = asyncio.current_task()
        if task is not None and self._puller() is not task:
            self._puller = ref(task)
            self._note_task()

    def retire(self) -> None:
        """Make this iterator invalid, also for who waits in it: another one takes over its cursor."""
        cursor, self._cursor = self._cursor, None
        self._iterator = iter(())
        if cursor is not None and cursor.waiter is not None:
            wake(cursor)
            cursor.waiter = None

    def reject(self, task: asyncio.Task[Any], reason: str | None) -> bool:
        """Refuse the event in hand in the name of a task that has asked for events; whether there was one that it may refuse: it
        has pulled it itself, or through a task that has finished."""
        puller = self._puller()
        is_its_own = puller is None or puller is task or puller.done()
        return is_its_own and self.gated and self._cursor is not None and self._cursor.reject(reason)


def wake(cursor: AnyCursor) -> None:
    """Let a waiting subscriber look again."""
    if cursor.waiter is not None and not cursor.waiter.done():
        cursor.waiter.set_result(None)


def reject_shared_stream_event(reason: str | None = None) -> None:
    """Refuse the event that the calling filter has in hand, for good: the broker dead-letters it instead of redelivering it.

    Call it from inside `filter_shared_stream`, in the filter's own task, after pulling the event and instead of yielding. The
    event resolves at once; what was yielded for it before is discarded, and what is yielded after is dropped. Anywhere else
    (between events, in another task, in `run()`, in unacknowledged mode) it does nothing but log a warning.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running loop
        task = None
    asked = list(_asked[task].values()) if task is not None and task in _asked else []
    if task is None or not any(subscription.reject(task, reason) for subscription in reversed(asked)):
        log.warning("reject_shared_stream_event: no event in hand that could be rejected; ignored")
