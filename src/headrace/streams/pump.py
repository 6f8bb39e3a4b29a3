"""Settling: takes what the ledger says is resolved and tells the producer, lane by lane, in order.

A lane has one call at a time, in flight or waiting for its retry; lanes do not wait for each other. What `advance` may raise:
`SourceUnavailable`, or being late, costs the lane a backoff; anything else, or once too often, ends the stream.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.errors import SourceUnavailable
from headrace.streams.contract import AdvanceItem, SharedStreamProducer
from headrace.streams.ledger import Ledger
from headrace.streams.segment import Harvest, Lane

FIRST_BACKOFF: Final = 0.1
LAST_BACKOFF: Final = 30.0


class StreamObserver(Protocol):
    """Told what happens on a stream, for metrics. Called on the loop, synchronously."""

    def on_read(self, key: Hashable, events: int, size: int) -> None:
        """A batch was fanned out; `size` in bytes."""

    def on_advanced(self, key: Hashable, items: Sequence[AdvanceItem], seconds: float) -> None:
        """An `advance` call returned."""

    def on_advance_failed(self, key: Hashable, error: Exception) -> None:
        """An `advance` call raised or was late."""

    def on_subscriber_failed(self, key: Hashable, trigger_id: Hashable, error: Exception) -> None:
        """A subscriber was failed by its stream."""


@dataclass(frozen=True, slots=True)
class PumpSettings:
    parallel: int
    timeout: float
    retries: int


class Deadline:
    """Cancels the task that made it if that is still inside when the time is up. Made once and entered often: its timer is set
    again only when it fires, so that entering costs next to nothing, where `asyncio.timeout` sets a timer each time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task = asyncio.current_task()
        self._cancelling = 0
        self.is_expired = False

    def __enter__(self) -> None:
        self.is_expired = False
        self._cancelling = self._task.cancelling() if self._task is not None else 0
        self._due = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._on_timer)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self._due = None
        if self.is_expired and self._task is not None:
            is_ours = self._task.uncancel() <= self._cancelling  # else somebody else cancelled the task as well
            if is_ours and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _on_timer(self) -> None:
        self._timer = None
        if self._due is None or self._task is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._on_timer)
        else:
            self.is_expired = True
            self._task.cancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Pump:
    """Calls `advance` for one stream. `on_error` is called once, synchronously, when the stream must end; `regulate` whenever a
    lane's pressure or health may have changed."""

    def __init__(
        self,
        key: Hashable,
        producer: SharedStreamProducer,
        ledger: Ledger,
        settings: PumpSettings,
        *,
        on_error: Callable[[Exception], None],
        regulate: Callable[[Lane], None],
        observer: StreamObserver | None,
        log: logging.Logger,
    ) -> None:
        self._key = key
        self._producer = producer
        self._ledger = ledger
        self._settings = settings
        self._on_error = on_error
        self._regulate = regulate
        self._observer = observer
        self._log = log
        self._idle: list[asyncio.Future[None]] = []
        """Workers that wait for news; the last to wait is the first to go on."""
        self._loop = asyncio.get_running_loop()
        self._is_stopping = False
        self._has_failed = False

    def wake(self) -> None:
        """A lane may have something to settle: let one worker look, which wakes the next if there is more."""
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():  # else its worker was cancelled just now
                waiter.set_result(None)
                return

    def stop(self) -> None:
        """Settle what is resolved, retry nothing, then let `run` return."""
        self._is_stopping = True
        while self._idle:
            self.wake()

    async def run(self) -> None:
        """Settle until stopped, with as many calls at once as the settings allow."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self._settings.parallel):
                workers.create_task(self._work())

    async def _work(self) -> None:
        deadline = Deadline(self._settings.timeout)
        try:
            while True:
                harvest = self._next_harvest()
                if harvest is not None:
                    if self._ledger.news:
                        self.wake()
                    await self._settle(harvest, deadline)
                elif self._is_stopping or self._has_failed:
                    return
                else:
                    await self._wait()
        finally:
            deadline.close()

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._idle:
                self._idle.remove(waiter)
            raise

    def _next_harvest(self) -> Harvest | None:
        """What to settle next, of the lanes with news."""
        news = self._ledger.news
        while news and not self._has_failed:
            lane = next(iter(news))
            del news[lane]
            if lane.is_busy or lane.is_lost:
                continue
            harvest, lane.retry = lane.retry, None
            if harvest is None:
                harvest = self._ledger.harvest(lane)
            elif self._is_stopping:
                continue
            if harvest is not None:
                lane.is_busy = True
                return harvest
            self._regulate(lane)
        return None

    async def _settle(self, harvest: Harvest, deadline: Deadline) -> None:
        lane = harvest.lane
        started = self._loop.time()
        try:
            with deadline:
                await self._producer.advance(harvest.items)
        except Exception as error:
            if isinstance(error, TimeoutError) and deadline.is_expired:
                error = SourceUnavailable(f"advance did not return within {self._settings.timeout} s")
            if self._observer is not None:
                self._observer.on_advance_failed(self._key, error)
            self._failed(harvest, error)
        else:
            lane.is_busy = False
            if self._observer is not None:
                self._observer.on_advanced(self._key, harvest.items, self._loop.time() - started)
            self._ledger.settle(harvest)
            self._regulate(lane)

    def _failed(self, harvest: Harvest, error: Exception) -> None:
        lane = harvest.lane
        harvest.attempts += 1
        if lane.is_lost:
            self._ledger.settle(harvest)  # what was read is out of flight; its outcome concerns nobody
        elif isinstance(error, SourceUnavailable) and (harvest.attempts <= self._settings.retries or self._is_stopping):
            lane.retry = harvest
            delay = min(LAST_BACKOFF, FIRST_BACKOFF * 2 ** (harvest.attempts - 1)) * random.uniform(0.5, 1.0)
            self._log.warning("advance failed on lane %r of stream %r, again in %.1f s: %r", lane.key, self._key, delay, error)
            self._loop.call_later(delay, self._retry, lane)
        else:
            self._has_failed = True
            self._log.error("advance failed on lane %r; the stream %r ends: %r", lane.key, self._key, error)
            self._on_error(error)

    def _retry(self, lane: Lane) -> None:
        lane.is_busy = False
        if not lane.is_lost:
            self._ledger.news[lane] = None
            self.wake()
