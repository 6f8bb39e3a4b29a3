"""What waits between the thread of a producer and the engine's loop: bounded, and one lock for a whole batch.

One side puts batches, the other takes them; each asks to be woken when it has to wait, and is woken once. Lost lanes overtake
everything, since nothing of their lane waits any more. A lane whose run is being broken off (R15) is *held*: what is put for
it stays here, to be given back to the producer, until it is released.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from headrace.streams.batch import EventBatch
from headrace.streams.contract import LaneLost

JOINED_EVENTS: Final = 512
"""Small batches that wait are taken as one of about this many events: a wake of the engine costs more than an event."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The producer's generator has ended: with an error, or by returning."""

    error: BaseException | None


class Bridge:
    """A bounded queue of batches from one thread to one other. `wake_*` are called in the thread that made the wait end."""

    def __init__(
        self, max_events: int, max_bytes: int, *, wake_taker: Callable[[], None], wake_putter: Callable[[], None]
    ) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._wake_taker = wake_taker
        self._wake_putter = wake_putter
        self._lock = threading.Lock()
        self._waiting: deque[EventBatch] = deque()
        self._held: dict[Hashable, list[EventBatch]] = {}
        self._lost: deque[LaneLost] = deque()
        self._ended: Ended | None = None
        self._paused = False
        self._events = 0
        self._bytes = 0
        self._taker_waits = False
        self._putter_waits = False

    @property
    def events(self) -> int:
        """Events that wait, held ones included."""
        return self._events

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; then wake whose wait has ended. Not with the lock held: waking gives the GIL away."""
        with self._lock:
            yield
            wakes_taker = self._taker_waits and self._has_next()
            if wakes_taker:
                self._taker_waits = False
            wakes_putter = self._putter_waits and not self._is_full()
            if wakes_putter:
                self._putter_waits = False
        if wakes_taker:
            self._wake_taker()
        if wakes_putter:
            self._wake_putter()

    # The producer's side.

    def put(self, batch: EventBatch) -> bool:
        """Add a batch. False: it is full now; wait to be woken before putting more."""
        with self._changing():
            self._events += len(batch)
            self._bytes += batch.byte_size
            for lane, held in self._held.items():
                inside, batch = _part(batch, lane)
                if inside:
                    held.append(inside)
            if batch:
                self._waiting.append(batch)
            self._putter_waits = is_full = self._is_full()
        return not is_full

    def lose(self, lane: Hashable) -> None:
        """Drop what waits of a lane that was taken away, and say so before anything else. It is held no longer."""
        with self._changing():
            self._forget(self._take_out(lane))
            self._forget(self._held.pop(lane, []))
            self._lost.append(LaneLost(lane))

    def end(self, error: BaseException | None) -> None:
        """Say, after all that waits, that nothing more will come."""
        with self._changing():
            self._ended = self._ended or Ended(error)

    def hold(self, lane: Hashable) -> None:
        """Keep back what waits of the lane and what comes of it, until `release`."""
        with self._changing():
            self._held.setdefault(lane, []).extend(self._take_out(lane))

    def take_held(self, lane: Hashable) -> list[Any]:
        """Take out the payloads of what is kept back of a held lane; it stays held."""
        with self._changing():
            batches = self._held.get(lane, [])
            if batches:
                self._held[lane] = []
                self._forget(batches)
        return [payload for batch in batches for payload in batch.payloads]

    # The engine's side.

    def take(self) -> EventBatch | LaneLost | Ended | None:
        """The next in line. None: nothing is there now; wait to be woken."""
        with self._changing():
            if self._lost:
                return self._lost.popleft()
            if not self._has_next():
                self._taker_waits = True
                return None
            if not self._waiting:
                return self._ended
            batch = self._next_batch()
            self._forget([batch])
            return batch

    def release(self, lane: Hashable) -> None:
        """Let a held lane go on."""
        with self._changing():
            self._waiting.extend(self._held.pop(lane, ()))

    def pause(self) -> None:
        """Let no batch be taken."""
        with self._changing():
            self._paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        with self._changing():
            self._paused = False

    # With the lock held.

    def _next_batch(self) -> EventBatch:
        batches = [self._waiting.popleft()]
        events = len(batches[0])
        while self._waiting and events + len(self._waiting[0]) <= JOINED_EVENTS:
            batches.append(self._waiting.popleft())
            events += len(batches[-1])
        return EventBatch.join(batches)

    def _take_out(self, lane: Hashable) -> list[EventBatch]:
        taken: list[EventBatch] = []
        kept: deque[EventBatch] = deque()
        for batch in self._waiting:
            inside, outside = _part(batch, lane)
            if inside:
                taken.append(inside)
            if outside:
                kept.append(outside)
        self._waiting = kept
        return taken

    def _forget(self, batches: list[EventBatch]) -> None:
        for batch in batches:
            self._events -= len(batch)
            self._bytes -= batch.byte_size

    def _is_full(self) -> bool:
        return self._events >= self._max_events or self._bytes >= self._max_bytes

    def _has_next(self) -> bool:
        return bool(self._lost or (not self._paused if self._waiting else self._ended))


def _part(batch: EventBatch, lane: Hashable) -> tuple[EventBatch, EventBatch]:
    """The events of one lane, and the others."""
    if batch.lanes is None:
        return (batch, batch[:0]) if batch.lane == lane else (batch[:0], batch)
    inside = [index for index, other in enumerate(batch.lanes) if other == lane]
    if not inside:
        return batch[:0], batch
    outside = [index for index, other in enumerate(batch.lanes) if other != lane]
    return batch.select(inside), batch.select(outside)
