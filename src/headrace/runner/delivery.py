"""The stream as a filter sees it, knowing when the filter moves past an event.

All that a filter yields while it has an event in hand is one `Unit`, bound to the event as it is yielded and submitted when the
filter asks for the next event, or returns. An event that is void by then (rejected, failed, its lane broken or lost) takes what
was derived from it along.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from headrace.runner.place import Place, suspect_name
from headrace.store import DeadLetter
from headrace.streams.batch import event_id
from headrace.streams.contract import EventInHand
from headrace.triggers.base import TriggerEvent

log = logging.getLogger(__name__)

MAX_COUNTED: Final = 100
"""Nodes of a payload that are looked at to estimate its size."""


class Delivery(AsyncIterator[Any]):
    """Raw events for one run of a filter; `inner` is the manager's iterator."""

    __slots__ = ("_events", "_hand", "_inner", "_is_over", "_next", "_parked", "_place", "_suspect", "_writes")

    def __init__(self, place: Place, inner: AsyncIterator[Any]) -> None:
        self._place = place
        self._inner = inner
        self._events: list[TriggerEvent] = []
        self._writes: list[int] = []
        self._hand: EventInHand | None = None
        self._suspect: EventInHand | None = None
        self._parked: asyncio.Event | None = None
        self._is_over = False
        self._next: Callable[[], Awaitable[Any]] = self._pull_watchfully if place.suspects else inner.__anext__

    def __aiter__(self) -> Delivery:
        self._inner.__aiter__()  # the engine notes which task drives it
        return self

    def __anext__(self) -> Awaitable[Any]:
        if self._events and self.move_past():
            return self._after_room()
        return self._next()

    # What the filter yields.

    def collect(self, event: TriggerEvent) -> None:
        """Take what the filter yielded. Raises `TypeError` for anything but a `TriggerEvent`."""
        if self._is_over:
            raise RuntimeError("this run of the filter is over")
        if not isinstance(event, TriggerEvent):
            raise TypeError(f"a filter yields TriggerEvent, not {type(event).__name__}")
        if not self._events:
            self._hand = self._place.event_in_hand()
            if self._hand is None:  # before its first event, or between two
                self._place.submit(None, [event], [])
                return
        write = self._place.bind(estimate_size(event.payload))
        if write is not None:
            self._writes.append(write)
        self._events.append(event)

    def move_past(self) -> bool:
        """Submit what was derived from the event in hand. True: too much waits for the store, and no broker waits with it."""
        events, writes, self._events, self._writes = self._events, self._writes, [], []
        if not events:
            return False
        hand = self._place.event_in_hand()
        if hand is None or hand.void:
            derived_from = hand or self._hand
            log.warning(
                "%s: dropped what was yielded for event %s, which was rejected, failed or taken away (%d events)",
                self._place.trigger_id, derived_from and derived_from.event_id, len(events),
            )  # fmt: skip
            return False
        self._place.submit(hand, events, writes)
        self._pass_suspect(derived=True)
        return not hand.gated and self._place.is_congested

    def close(self) -> None:
        """The run is over: forget what was derived and not submitted. Code that outlives its run reaches nothing through this."""
        self._is_over = True
        self._events = []
        self._writes = []
        self._suspect = None
        self._next = self._refuse

    async def _refuse(self) -> Any:
        raise RuntimeError("this run of the filter is over")

    async def _after_room(self) -> Any:
        await self._place.room()
        return await self._next()

    # Suspects.

    async def _pull_watchfully(self) -> Any:
        """Pull, and keep back what is a dead letter already."""
        place = self._place
        self._pass_suspect(derived=False)
        if not place.suspects and self._parked is None:
            self._next = self._inner.__anext__
        while True:
            raw = await self._inner.__anext__()
            name = event_id(raw)
            hand = None
            if name is None:
                hand = place.event_in_hand()
                name = suspect_name(hand) if hand is not None else None
            failures = place.suspects.get(name) if name is not None else None
            if failures is None:
                return raw
            hand = hand or place.event_in_hand()
            assert hand is not None
            if failures.attempts < place.max_attempts:
                self._suspect = hand
                return raw
            place.give_up(hand, DeadLetter("failed", failures.error, attempts=failures.attempts))

    def _pass_suspect(self, *, derived: bool) -> None:
        suspect, self._suspect = self._suspect, None
        if suspect is not None and (hand := self._place.event_in_hand()) is not None and not hand.void:
            self._place.got_through(suspect, derived=derived)

    # Stopping.

    def park(self) -> asyncio.Event:
        """Let the filter finish the event in hand and then wait for ever; returns what is set when it has."""
        if self._parked is None:
            self._parked = asyncio.Event()
            self._next = self._hold
        return self._parked

    async def _hold(self) -> Any:
        assert self._parked is not None
        self._parked.set()
        self._pass_suspect(derived=False)
        await self._inner.__anext__()  # asking is moving past; what comes is left to redelivery
        await asyncio.get_running_loop().create_future()


def estimate_size(payload: Any) -> int:
    """About how many bytes a payload holds, at a bounded cost: what is beyond `MAX_COUNTED` nodes counts as their average."""
    size = 0
    counted = 0
    todo = [payload]
    while todo and counted < MAX_COUNTED:
        value = todo.pop()
        counted += 1
        if isinstance(value, str | bytes | bytearray):
            size += 49 + len(value)
        elif isinstance(value, Mapping):
            size += 64 + 16 * len(value)
            todo.extend(value.keys())
            todo.extend(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            size += 56 + 8 * len(value)
            todo.extend(value)
        else:
            size += 32
    return size + len(todo) * (size // counted)
