"""Between triggers and the store: units go in, and what became of them goes to the engine.

One `Writer` serves all streams. What it has stored is confirmed to each stream's manager in one call a group. What it refuses
for its content becomes a dead letter at once, which takes over the writes of the event: no stored id, no ack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import orjson

from headrace.connector import Message
from headrace.runner.observer import Observer
from headrace.store import DeadLetter, Store, Unit, Writer
from headrace.streams.contract import UNORDERED

log = logging.getLogger(__name__)

MAX_UNGATED_UNITS: Final = 10_000
MAX_UNGATED_BYTES: Final = 64 * 2**20
"""What may wait for the store from triggers that no broker waits for; a stream's own bounds hold the others."""


class Confirms(Protocol):
    """The manager's side of storing."""

    def confirm_persisted(self, seqs: Iterable[int]) -> None: ...
    def persist_failed(self, seqs: Iterable[int]) -> None: ...
    def store_available(self, available: bool) -> None: ...


@dataclass(slots=True)
class Origin:
    """Where a unit came from: a unit's `context`."""

    manager: Confirms | None = None
    writes: list[int] = field(default_factory=list)
    """The write ids of its events."""
    raw: Any = None
    """The raw event it was derived from, in case the store refuses the unit."""
    on_answer: Callable[[bool], None] | None = None
    """Called with whether the unit, or a dead letter in its place, is stored."""


class Submitter:
    """Owns the writer. Everything on the event loop."""

    def __init__(self, store: Store, observer: Observer, *, make_writer: Callable[..., Writer] = Writer) -> None:
        self._observer = observer
        self._managers: set[Confirms] = set()
        self._waiters: list[asyncio.Future[None]] = []
        self._writer = make_writer(
            store,
            on_stored=self._stored,
            on_refused=self._refused,
            on_available=self._available,
            on_group=observer.on_group,
        )

    def attach(self, manager: Confirms) -> None:
        """Tell this manager when the store goes away and comes back."""
        self._managers.add(manager)
        if not self._writer.available:
            manager.store_available(False)

    def detach(self, manager: Confirms) -> None:
        """Undo `attach`."""
        self._managers.discard(manager)

    @property
    def is_available(self) -> bool:
        """Whether the store took the last group."""
        return self._writer.available

    def submit(self, unit: Unit) -> None:
        """Have it stored; never blocks. Its context is an `Origin`."""
        self._writer.submit(unit)

    async def store(self, units: Sequence[Unit]) -> bool:
        """Have these stored, and wait for it. False: one of them was refused, even without its message."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[bool]] = []
        for unit in units:
            answer: asyncio.Future[bool] = loop.create_future()
            answers.append(answer)
            unit.context = Origin(on_answer=lambda stored, answer=answer: answer.done() or answer.set_result(stored))  # type: ignore[misc]
            self._writer.submit(unit)
        return all(await asyncio.gather(*answers))

    @property
    def is_congested(self) -> bool:
        """Whether too much waits for triggers without a bound of their own to add more: await `room` then."""
        return self._writer.pending_units > MAX_UNGATED_UNITS or self._writer.pending_bytes > MAX_UNGATED_BYTES

    async def room(self) -> None:
        """Wait until less waits for the store."""
        while self.is_congested:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def flush(self, timeout: float) -> bool:
        """Wait until all that was submitted is answered, at most `timeout` seconds; whether it was."""
        try:
            async with asyncio.timeout(timeout):
                await self._writer.flush()
        except TimeoutError:
            return False
        return True

    async def aclose(self) -> None:
        await self._writer.aclose()

    def _stored(self, units: list[Unit]) -> None:
        confirmed: dict[Confirms, list[int]] = {}
        for unit in units:
            origin: Origin = unit.context
            if origin.manager is not None and origin.writes:
                confirmed.setdefault(origin.manager, []).extend(origin.writes)
            if origin.on_answer is not None:
                origin.on_answer(True)
            if unit.dead is not None:
                self._observer.on_dead_letter(unit.trigger_id, unit.stream, unit.dead.cause)
        for manager, writes in confirmed.items():
            manager.confirm_persisted(writes)
        self._observer.on_stored(units)
        if self._waiters and not self.is_congested:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _refused(self, unit: Unit, error: Exception) -> None:
        origin: Origin = unit.context
        if unit.dead is None:
            log.warning("%s: the store refuses what it derived from %s: %s", unit.trigger_id, unit.message_id, error)
            message = as_message(origin.raw, unit.message_id, unit.stream)
            dead = DeadLetter("unstorable", str(error), message=message)
            self._writer.submit(replace(unit, events=(), dead=dead))
        elif unit.dead.message is not None or unit.dead.traceback is not None:
            log.error(
                "%s: the store refuses the dead letter of %s, kept without message: %s", unit.trigger_id, unit.message_id, error
            )
            bare = replace(unit.dead, message=None, traceback=None, reason=f"{unit.dead.reason} (message not kept: {error})")
            self._writer.submit(replace(unit, dead=bare))
        else:
            log.error("%s: the store refuses even a bare dead letter of %s: %s", unit.trigger_id, unit.message_id, error)
            if origin.manager is not None and origin.writes:
                origin.manager.persist_failed(origin.writes)
            if origin.on_answer is not None:
                origin.on_answer(False)

    def _available(self, available: bool) -> None:
        for manager in self._managers:
            manager.store_available(available)
        self._observer.on_store_available(available)


def as_message(raw: Any, event_id: str | None, stream: str | None) -> Message | None:
    """The raw event as a dead letter keeps it; None for an object that has no bytes of its own."""
    if raw is None or isinstance(raw, Message):
        return raw
    if isinstance(raw, str):
        value = raw.encode("utf-8", "surrogatepass")
    elif isinstance(raw, bytes | bytearray | memoryview):
        value = bytes(raw)
    else:
        try:
            value = orjson.dumps(raw)
        except TypeError:
            return None
    return Message(value=value, id=event_id or "", source=stream or "", timestamp=0.0)


def lane_name(lane: Hashable) -> str | None:
    """A lane as a unit and a person read it."""
    if lane is None or lane is UNORDERED:
        return None
    return "/".join(map(_text, lane)) if isinstance(lane, tuple) else _text(lane)


def _text(part: object) -> str:
    if isinstance(part, bytes):
        try:
            return part.decode()
        except UnicodeDecodeError:
            pass
    return str(part)
