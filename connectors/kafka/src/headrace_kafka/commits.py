"""Offset commits: one request for all partitions, one at a time, at once when idle and then not more often than the interval.

A commit is sent by a task of its own, so that an `advance` that is cancelled leaves nothing half done; `advance` waits here
until the broker has acknowledged a position. While the group rebalances nothing is sent: aiokafka retries a commit for as
long as it takes, with whatever membership it has by then, and would commit for partitions that others have meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaError

from headrace import HeadraceError, SourceUnavailable
from headrace_kafka.lanes import Lane, Lanes

log = logging.getLogger(__name__)

Send = Callable[[Mapping[TopicPartition, int]], Awaitable[Mapping[TopicPartition, int]]]
"""Commits, and returns what was committed of it; or raises aiokafka's errors."""


class Commits:
    """Commits what the lanes have settled. `run` is its task."""

    def __init__(
        self,
        lanes: Lanes,
        send: Send,
        *,
        interval: float,
        again_after: float,
        patience: float,
        explain: Callable[[KafkaError], HeadraceError],
    ) -> None:
        self._lanes = lanes
        self._send = send
        self._interval = interval
        self._again_after = again_after
        self._patience = patience
        self._explain = explain
        self._wanted = asyncio.Event()
        self._allowed = asyncio.Event()
        self._progress = asyncio.Event()
        self._in_flight: asyncio.Future[Mapping[TopicPartition, int]] | None = None
        self._error: HeadraceError | None = None
        self._membership = 0
        self._last_sent = float("-inf")
        self.sent = 0
        """Commits that the broker acknowledged."""
        self.failed = 0

    def request(self) -> None:
        """Say that there may be something to commit."""
        self._wanted.set()

    def notify(self) -> None:
        """Let everyone who waits look again: a lane is gone, or something is settled."""
        self._progress.set()
        self._progress.clear()

    def allow(self) -> None:
        """Send from now on: this consumer is a member, and its partitions are known."""
        self._membership += 1
        self._error = None
        self._allowed.set()
        self._wanted.set()

    async def forbid(self, grace: float) -> None:
        """Send nothing until `allow`. What is settled or being settled now has `grace` seconds to be committed first."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._allowed.is_set() and not self._lanes.are_settled:
                    await self._progress.wait()
        self._allowed.clear()
        if self._in_flight is not None:
            self._in_flight.cancel()

    async def acknowledged(self, lane: Lane, position: int) -> None:
        """Wait until the broker has this position of the lane, or the lane is gone.

        Raises `SourceUnavailable` when it takes longer than the patience, and what a refused commit means.
        """
        self._error = None  # whoever got it is told; this one asks for another try
        self.request()
        try:
            async with asyncio.timeout(self._patience):
                while lane.is_alive and (lane.committed is None or lane.committed < position):
                    if self._error is not None:
                        raise self._error
                    await self._progress.wait()
        except TimeoutError:
            raise SourceUnavailable(
                f"no acknowledgement of position {position} in {lane.name} within {self._patience:g} s"
            ) from None

    async def run(self) -> None:
        """Commit for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._again_after
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._allowed.wait()
            if (early := self._last_sent + self._interval - loop.time()) > 0:
                await asyncio.sleep(early)
            if not self._allowed.is_set():
                self._wanted.set()
                continue
            again = loop.time() >= due
            if again:
                due = loop.time() + self._again_after
            if offsets := self._lanes.uncommitted(again=again):
                await self._commit(offsets)

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        membership = self._membership
        self._last_sent = asyncio.get_running_loop().time()
        self._in_flight = task = asyncio.ensure_future(self._send(offsets))
        try:
            await asyncio.wait({task})
        finally:
            self._in_flight = None
            task.cancel()
        if task.cancelled():  # by `forbid`: the positions are kept, for the lanes that are
            return
        error = task.exception()
        if error is None:
            self.sent += 1
            self._error = None
            self._lanes.acknowledge(task.result())
        elif isinstance(error, CommitFailedError):
            # The group moved on. The next assignment says which lanes are still ours; until then nothing may be sent, for
            # without a membership the broker would take a commit as an administrator's.
            self.failed += 1
            log.info("a commit came too late for the group's generation; waiting for the new assignment")
            if membership == self._membership:
                self._allowed.clear()
        elif isinstance(error, KafkaError):
            self.failed += 1
            self._error = self._explain(error)
            log.warning("a commit was refused: %s", self._error)
        else:
            raise error
        self.notify()
