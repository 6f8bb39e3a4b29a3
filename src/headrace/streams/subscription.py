"""A subscriber's stream of raw events: the thin async shell over its cursor, and `reject_shared_stream_event`.

A pull drains the segment at hand without going back to the loop. Only when there is nothing ordinary to take does it ask the
cursor, and only when there is nothing at all does it wait. A cancelled pull takes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

from headrace.errors import StreamError
from headrace.streams.cursor import NOTHING, AnyCursor
from headrace.streams.ledger import Ledger

log = logging.getLogger(__name__)

_driven: WeakKeyDictionary[asyncio.Task[Any], list[Subscription]] = WeakKeyDictionary()
"""The subscriptions that a task pulls from: it is the task of their filters."""


class Subscription(AsyncIterator[Any]):
    """The raw events of one subscriber, in fan-out order: by `async for`, or by `anext`. One task at a time may pull.

    `gated`: the broker waits for what is derived (ack mode), so an event may be rejected.
    """

    __slots__ = ("__weakref__", "_cursor", "_driver", "_iterator", "_ledger", "gated")

    def __init__(self, ledger: Ledger, cursor: AnyCursor, *, gated: bool) -> None:
        self.gated = gated
        self._ledger = ledger
        self._cursor: AnyCursor | None = cursor
        self._iterator: Iterator[Any] = iter(())
        self._driver: Callable[[], asyncio.Task[Any] | None] = lambda: None
        self._note_driver()

    def __aiter__(self) -> AsyncIterator[Any]:
        self._note_driver()
        return self._drain()

    async def _drain(self) -> AsyncIterator[Any]:
        """What `async for` runs: an async generator costs a third less than a coroutine for each event. A pull that is cancelled
        in it ends it, as it ends the loop; the subscription lives on."""
        while True:
            for raw in self._iterator:
                yield raw
            raw = None  # while it waits it keeps no event alive
            yield await self._pull()

    async def __anext__(self) -> Any:
        for raw in self._iterator:
            return raw
        self._note_driver()
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
            cursor.waiter = asyncio.get_running_loop().create_future()
            try:
                await cursor.waiter
            finally:
                cursor.waiter = None

    def _note_driver(self) -> None:
        """Remember which task the filter runs in."""
        task = asyncio.current_task()
        if task is None or self._driver() is task:
            return
        # `asyncio.wait_for(anext(stream))` on Python 3.11 pulls in a task of its own, which is not the filter's
        if getattr(task.get_coro(), "cr_code", None) is not _PULL_CODE:
            if (former := self._driver()) is not None:
                _driven[former].remove(self)
            self._driver = ref(task)
            _driven.setdefault(task, []).append(self)

    def retire(self) -> None:
        """Make this iterator invalid: another one takes over its cursor."""
        self._cursor = None
        self._iterator = iter(())

    def reject(self, reason: str | None) -> bool:
        """Refuse the event in hand; whether there was one that may be refused."""
        return self.gated and self._cursor is not None and self._cursor.reject(reason)


_PULL_CODE = Subscription.__anext__.__code__


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
    subscriptions = _driven.get(task, []) if task is not None else []
    if not any(subscription.reject(reason) for subscription in reversed(subscriptions)):
        log.warning("reject_shared_stream_event: no event in hand that could be rejected; ignored")
