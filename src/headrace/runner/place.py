"""One trigger's place on its stream: the manager's calls with the trigger's name filled in, and what it had to give up.

A *suspect* is an event that this trigger failed on: when it comes again, its attempts are known, and one that is dead already is
not offered to the filter any more. Attempts are counted durably in the store; this memory only spares the filter and forgets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from headrace.connector import Message
from headrace.errors import StoreError
from headrace.runner.observer import Observer
from headrace.runner.submitter import Origin, Submitter, as_message, lane_name
from headrace.store import Attempts, DeadLetter, Unit
from headrace.streams.batch import event_id
from headrace.streams.contract import EventInHand
from headrace.streams.manager import SharedStreamManager
from headrace.triggers.base import TriggerEvent

log = logging.getLogger(__name__)

SUSPECTS_KEPT: Final = 1024
SUSPECT_SECONDS: Final = 900.0
"""How long after its last failure an event stays a suspect. Longer than brokers let a failed event wait."""


_clearing: set[asyncio.Task[None]] = set()


class Failures(NamedTuple):
    attempts: int
    error: str
    """The last one's."""
    at: float


class Suspects:
    """Events that failed lately, with how often. Bounded in number and time."""

    __slots__ = ("_clock", "_failures")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, Failures] = {}
        """Oldest first."""

    def __bool__(self) -> bool:
        now = self._clock()
        while self._failures:
            name, failures = next(iter(self._failures.items()))
            if now - failures.at < SUSPECT_SECONDS:
                return True
            del self._failures[name]
        return False

    def note(self, name: str, attempts: int, error: str) -> None:
        """One more failure of it."""
        self._failures.pop(name, None)
        self._failures[name] = Failures(attempts, error, self._clock())
        while len(self._failures) > SUSPECTS_KEPT:
            del self._failures[next(iter(self._failures))]

    def get(self, name: str) -> Failures | None:
        """How it failed, as far as is remembered."""
        failures = self._failures.get(name)
        return failures if failures is not None and self._clock() - failures.at < SUSPECT_SECONDS else None

    def clear(self, name: str) -> None:
        """It got through."""
        self._failures.pop(name, None)


class Place:
    """Lives as long as its trigger is run; the subscription behind it may be renewed."""

    def __init__(
        self,
        trigger_id: str,
        stream: str,
        key: Hashable,
        *,
        manager: SharedStreamManager,
        submitter: Submitter,
        attempts: Attempts,
        observer: Observer,
        max_attempts: int,
    ) -> None:
        self.trigger_id = trigger_id
        self.stream = stream
        self.max_attempts = max_attempts
        self.suspects = Suspects(asyncio.get_running_loop().time)
        self.unanswered = 0
        """Units that the store has not answered."""
        self._idle: asyncio.Future[None] | None = None
        self._key = key
        self._manager = manager
        self._submitter = submitter
        self._attempts = attempts
        self._observer = observer

    # The engine.

    def event_in_hand(self) -> EventInHand | None:
        return self._manager.event_in_hand(trigger_id=self.trigger_id, key=self._key)

    def bind(self, size: int) -> int | None:
        return self._manager.bind_pending_event(trigger_id=self.trigger_id, key=self._key, size=size)

    def resume(self) -> AsyncIterator[Any]:
        return self._manager.resume(trigger_id=self.trigger_id, key=self._key)

    async def leave(self, *, abandon: bool) -> None:
        await self._manager.unsubscribe(self.trigger_id, self._key, abandon=abandon)

    # The store.

    @property
    def is_congested(self) -> bool:
        return self._submitter.is_congested

    async def room(self) -> None:
        await self._submitter.room()

    def submit(self, hand: EventInHand | None, events: Sequence[TriggerEvent], writes: list[int]) -> None:
        """Have stored what was derived from the event in hand; from none, it is always new."""
        self._submit(hand, writes, events=events)

    def give_up(self, hand: EventInHand, dead: DeadLetter) -> None:
        """Make the event in hand a dead letter of this trigger, which its settlement waits for."""
        log.error(
            "%s: event %s is a dead letter after %d attempts: %s", self.trigger_id, hand.event_id, dead.attempts, dead.reason
        )
        write = self.bind(0)
        dead.message = as_message(hand.raw_event, hand.event_id, self.stream)
        self._submit(hand, [] if write is None else [write], dead=dead)
        if (name := suspect_name(hand)) is not None:
            self.suspects.note(name, max(self.max_attempts, dead.attempts), dead.reason)

    def _submit(
        self, hand: EventInHand | None, writes: list[int], *, events: Sequence[TriggerEvent] = (), dead: DeadLetter | None = None
    ) -> None:
        raw = None if hand is None else hand.raw_event
        self.unanswered += 1
        self._submitter.submit(
            Unit(
                self.trigger_id,
                self.stream,
                None if hand is None else hand.event_id,
                events,
                lane=None if hand is None else lane_name(hand.lane),
                published_at=raw.timestamp if isinstance(raw, Message) else None,
                dead=dead,
                context=Origin(self._manager, writes, raw, self._answered),
            )
        )

    def _answered(self, stored: bool) -> None:
        self.unanswered -= 1
        if not self.unanswered and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def answered(self, timeout: float | None = None) -> bool:
        """Wait until the store has answered for all units, at most `timeout` seconds; whether it has."""
        if self.unanswered:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._idle,), timeout=timeout)
        return not self.unanswered

    # Attempts.

    async def count_attempt(self, hand: EventInHand, error: str) -> int:
        """Count a failure on this event, durably where it has an identity and the store answers; how many that makes."""
        known = self.suspects.get(suspect_name(hand) or "")
        attempts = 1 if known is None else known.attempts + 1
        if hand.event_id is None:
            attempts = max(attempts, hand.attempt)
        else:
            try:
                attempts = max(attempts, await self._attempts.bump(self.trigger_id, hand.event_id, error))
            except StoreError as away:
                log.warning("%s: attempt %d on %s is counted in memory: %s", self.trigger_id, attempts, hand.event_id, away)
        if (name := suspect_name(hand)) is not None:
            self.suspects.note(name, attempts, error)
        self._observer.on_attempt_failed(self.trigger_id, attempts)
        return attempts

    def got_through(self, hand: EventInHand, *, derived: bool) -> None:
        """The filter moved past a suspect. What it derived clears the durable count when it is stored; else that is done here."""
        if (name := suspect_name(hand)) is not None:
            self.suspects.clear(name)
        if hand.event_id is not None and not derived:
            task = asyncio.get_running_loop().create_task(self._clear(hand.event_id))
            _clearing.add(task)
            task.add_done_callback(_clearing.discard)

    async def _clear(self, message_id: str) -> None:
        try:
            await self._attempts.clear(self.trigger_id, message_id)
        except StoreError as error:
            log.info("%s: the attempts on %s stay counted: %s", self.trigger_id, message_id, error)


def suspect_name(hand: EventInHand) -> str | None:
    """What a suspect is known by when it is pulled again: told from the raw event alone where that has an id."""
    return event_id(hand.raw_event) or hand.event_id
