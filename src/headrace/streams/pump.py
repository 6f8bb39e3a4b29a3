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
        self._news = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._has_failed = False

    def wake(self) -> None:
        """A lane may have something to settle."""
        self._news.set()

    def stop(self) -> None:
        """Settle what is resolved, retry nothing, then let `run` return."""
        self._is_stopping = True
        self._news.set()

    async def run(self) -> None:
        """Settle until stopped."""
        try:
            while True:
                if not self._is_stopping:
                    await self._news.wait()
                self._news.clear()
                await self._settle_news()
                if self._is_stopping:
                    if not self._calls:
                        return
                    await self._news.wait()
        finally:
            for call in self._calls:
                call.cancel()

    async def _settle_news(self) -> None:
        news = self._ledger.news
        while news and not self._has_failed:
            if len(self._calls) >= self._settings.parallel:
                return  # the call that ends wakes the pump
            lane = next(iter(news))
            del news[lane]
            harvest = self._next_harvest(lane)
            if harvest is None:
                self._regulate(lane)
                continue
            lane.is_busy = True
            if self._settings.parallel == 1:
                await self._settle(harvest)
            else:
                call = asyncio.create_task(self._settle(harvest))
                self._calls.add(call)
                call.add_done_callback(self._call_ended)

    def _call_ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._news.set()

    def _next_harvest(self, lane: Lane) -> Harvest | None:
        if lane.is_busy or lane.is_lost:
            return None
        if lane.retry is None:
            return self._ledger.harvest(lane)
        if self._is_stopping:
            return None
        harvest, lane.retry = lane.retry, None
        return harvest

    async def _settle(self, harvest: Harvest) -> None:
        lane = harvest.lane
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = asyncio.timeout(self._settings.timeout)
        try:
            async with deadline:
                await self._producer.advance(harvest.items)
        except Exception as error:
            lane.is_busy = False
            late = isinstance(error, TimeoutError) and deadline.expired()
            if late:
                error = SourceUnavailable(f"advance did not return within {self._settings.timeout} s")
            if self._observer is not None:
                self._observer.on_advance_failed(self._key, error)
            self._failed(harvest, error)
            return
        lane.is_busy = False
        if self._observer is not None:
            self._observer.on_advanced(self._key, harvest.items, loop.time() - started)
        self._ledger.settle(harvest)
        self._regulate(lane)

    def _failed(self, harvest: Harvest, error: Exception) -> None:
        lane = harvest.lane
        harvest.attempts += 1
        if lane.is_lost:
            self._ledger.settle(harvest)
            return
        if not isinstance(error, SourceUnavailable) or (harvest.attempts > self._settings.retries and not self._is_stopping):
            self._has_failed = True
            self._log.error("advance failed on lane %r; the stream %r ends: %r", lane.key, self._key, error)
            self._on_error(error)
            return
        lane.retry = harvest
        if self._is_stopping:
            return
        delay = min(LAST_BACKOFF, FIRST_BACKOFF * 2 ** (harvest.attempts - 1)) * random.uniform(0.5, 1.0)
        self._log.warning("advance failed on lane %r of stream %r, again in %.1f s: %r", lane.key, self._key, delay, error)
        asyncio.get_running_loop().call_later(delay, self._retry, lane)

    def _retry(self, lane: Lane) -> None:
        if not lane.is_lost:
            self._ledger.news[lane] = None
            self._news.set()
