"""The producer of a Kafka stream: polls by itself, hands batches out, and turns outcomes into commits.

Three tasks live from the first pull to `aclose`, so that what is resolved can be committed after the last pull too: one polls
into a small buffer, and goes on being a member of the group when nobody pulls; one commits; one is the watchdog. All state is
in `Lanes`, which they and `advance` change between two awaits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Final

from aiokafka import TopicPartition

from headrace import AdvanceItem, Capabilities, EventBatch, HeadraceError, LaneLost, SharedStreamProducer
from headrace_kafka.buffer import Buffer
from headrace_kafka.client import start_producer
from headrace_kafka.commits import Commits
from headrace_kafka.config import KafkaConfig
from headrace_kafka.deadletter import DeadLetters
from headrace_kafka.errors import explain
from headrace_kafka.health import Health, Sight
from headrace_kafka.lanes import Change, Lane, Lanes
from headrace_kafka.message import KafkaMessage
from headrace_kafka.session import Session
from headrace_kafka.verdicts import judge

log = logging.getLogger(__name__)

CAPABILITIES: Final = Capabilities(ordered=True, parallel_advances=32, replayable=True)
"""`advance` mostly waits for a commit that all lanes share, so several wait at once; more would cost more than they bring."""

STOP_SECONDS: Final = 4.0
"""How long leaving the group may take: less than a stream gives its producer to close."""


class KafkaProducer(SharedStreamProducer):
    """One consumer in a group. Built without connecting; one event loop, one poll."""

    capabilities = CAPABILITIES

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._lanes = Lanes()
        self._buffer = Buffer()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._poller: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._commits: Commits | None = None
        self._dead_letters: DeadLetters | None = None
        self._failure: BaseException | None = None
        self._is_paused = False
        self._health = Health(
            f"group {config.group_id}",
            config.watchdog_timeout,
            ends=self._read_ends,
            see=self._see,
            joining=lambda: self._session.joining_for if self._session else 0.0,
            rebuild=self._rebuild,
        )
        self._positions_gone = 0
        self._counts = dict.fromkeys(("read", "redeliveries", "stale", "lanes_lost"), 0)

    # Handing out

    async def open_batches(self) -> AsyncIterator[EventBatch | LaneLost]:
        """Connect, and yield poll batches of all partitions. Raises `SourceUnavailable` and `SourceMisconfigured`."""
        await self._open()
        while True:
            found: EventBatch | LaneLost | None = self._buffer.pull_lost()
            if found is None and not self._is_paused and not self._is_rebalancing:
                found = self._buffer.pull()
            if found is None:
                if self._failure is not None:
                    raise self._failure
                self._ready.clear()
                await self._ready.wait()
                continue
            self._room.set()
            yield found

    async def _open(self) -> None:
        config = self._config
        self._commits = Commits(
            self._lanes,
            self._send_commit,
            interval=config.commit_interval,
            again_after=config.recommit_interval,
            patience=config.request_timeout,
            explain=lambda error: explain(error, config),
        )
        self._session = session = self._new_session()
        await session.connect()
        try:
            if config.dead_letter_topic is not None:
                self._dead_letters = DeadLetters(
                    config.dead_letter_topic,
                    lambda: start_producer(config),
                    patience=config.request_timeout,
                    explain=lambda error: explain(error, config),
                )
                await self._dead_letters.open()
        except BaseException:
            await session.stop(STOP_SECONDS)
            raise
        session.join()
        self._poller = self._spawn(self._poll())
        self._spawn(self._commits.run())
        self._spawn(self._health.run())

    def _new_session(self) -> Session:
        assert self._commits is not None
        return Session(self._config, self._lanes, self._commits, self._lanes_changed)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error
            self._ready.set()

    @property
    def _is_rebalancing(self) -> bool:
        return self._session is None or self._session.is_rebalancing

    @property
    def _is_full(self) -> bool:
        config = self._config
        return self._buffer.events >= config.max_poll_records or self._buffer.bytes >= config.max_partition_fetch_bytes

    async def _poll(self) -> None:
        """Poll for ever. While the buffer is full, only so as to stay a member."""
        session = self._session
        assert session is not None
        while True:
            if self._is_full:
                self._room.clear()
                try:
                    async with asyncio.timeout(self._config.max_poll_interval / 4):
                        await self._room.wait()
                except TimeoutError:
                    await session.keep_membership()
                continue
            polled = await session.poll()
            for lane, records, after in polled:
                self._buffer.put(lane, records, after)
                self._counts["read"] += len(records)
            if polled:
                self._ready.set()
            else:
                session.skip_markers()

    def _lanes_changed(self, change: Change) -> None:
        self._counts["lanes_lost"] += len(change.lost)
        self._buffer.lose(change.lost)
        self._room.set()
        self._ready.set()

    def get_advance_lane(self, broker_payload: KafkaMessage) -> Hashable:
        lane: Hashable = broker_payload.run.lane.key
        return lane

    def pause(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._is_paused = True
        elif (found := self._find(lane)) is not None and not found.is_paused:
            found.is_paused = True
            if found.position is not None:
                self._take_back(found)

    def resume(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._is_paused = False
            self._ready.set()
        elif (found := self._find(lane)) is not None:
            found.is_paused = False
            if self._session is not None:
                self._session.opened.set()

    def _find(self, lane: Hashable) -> Lane | None:
        return self._lanes.get(lane) if isinstance(lane, tuple) else None

    def _take_back(self, lane: Lane) -> None:
        """Read again later what waits to be handed out: here it would take the room of others."""
        self._buffer.drop(lane)
        lane.unread()
        if self._session is not None:
            self._session.seek(lane)
        self._room.set()

    # Settling

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Commit what is settled, dead-letter what is rejected, and go back to what failed.

        Returns when the broker has acknowledged the commit; the failed message is then the next of its lane to be handed out,
        after a rest. Events of a lane that is gone, or of an ended run, change nothing. Raises `SourceUnavailable` and
        `SourceMisconfigured`.
        """
        assert self._commits is not None
        lane: Lane = batch[0].broker_payload.run.lane
        verdict = judge(batch, lane.run)
        self._counts["stale"] += verdict.stale
        if not lane.is_alive:
            self._counts["stale"] += len(batch) - verdict.stale
            return
        self._lanes.acknowledging = True
        if verdict.failed is not None:
            lane.break_off()
            self._take_back(lane)
        if verdict.rejected and self._dead_letters is not None:
            await self._dead_letters.send(verdict.rejected)
        if verdict.settled is not None:
            await self._commits.acknowledged(lane, lane.settle(verdict.settled))
        if verdict.failed is not None and lane.is_alive:
            self._go_back(lane, verdict.failed)

    def _go_back(self, lane: Lane, offset: int) -> None:
        assert self._session is not None
        assert self._commits is not None
        rest = min(self._config.redelivery_backoff_max, self._config.redelivery_backoff * 2.0**lane.failures)
        lane.start_again(offset, rests_until=asyncio.get_running_loop().time() + rest * random.uniform(0.5, 1.0))
        self._session.seek(lane)
        self._counts["redeliveries"] += 1
        self._commits.notify()

    async def _send_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        assert self._session is not None
        return await self._session.commit(offsets)

    # Watching

    async def _read_ends(self) -> Mapping[TopicPartition, int]:
        assert self._session is not None
        return await self._session.ends()

    def _see(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Sight]:
        assert self._session is not None
        now = asyncio.get_running_loop().time()
        seen = {}
        for lane in self._lanes:
            at = self._session.position_of(lane)
            is_behind = at is None or at < ends.get(lane.key, 0)
            is_read = lane.position is None or (lane.is_open(now) and not self._is_full)  # the first waits for its position
            seen[lane.key] = Sight(lane.delivered, is_behind and is_read)
        return seen

    async def _rebuild(self) -> bool:
        """Put a new consumer in the old one's place, if one can connect. Every lane is lost by it."""
        assert self._session is not None
        assert self._commits is not None
        assert self._poller is not None
        session = self._new_session()
        try:
            await session.connect()
        except HeadraceError as error:
            log.warning("group %s: %s", self._config.group_id, error)
            return False
        self._poller.cancel()
        old, self._session = self._session, session
        self._positions_gone += old.positions_gone
        await self._commits.forbid(0.0)
        self._lose_all()
        await old.stop(STOP_SECONDS)
        session.join()
        self._poller = self._spawn(self._poll())
        return True

    def _lose_all(self) -> None:
        self._lanes_changed(self._lanes.assign((), unbroken=False))
        if self._commits is not None:
            self._commits.notify()

    def stats(self) -> dict[str, Any]:
        """What to measure, as it is now; from any thread. Counts are since the start; `trouble` is a sentence, or None; for each
        partition, `positions` has what is settled and `lag` what is behind that, up to a sixth of `watchdog_timeout` ago."""
        placed = {lane.key: lane for lane in self._lanes if lane.position is not None}
        ends = self._health.ends
        return {
            **self._counts,
            "rebuilds": self._health.rebuilds,
            "commits": self._commits.sent if self._commits else 0,
            "commits_failed": self._commits.failed if self._commits else 0,
            "dead_letters": self._dead_letters.count if self._dead_letters else 0,
            "positions_gone": self._positions_gone + (self._session.positions_gone if self._session else 0),
            "trouble": self._health.trouble,
            "is_rebalancing": self._is_rebalancing,
            "positions": {lane.name: lane.settled for lane in placed.values()},
            "lag": {lane.name: max(0, ends[key] - lane.settled) for key, lane in placed.items() if key in ends},
        }

    async def aclose(self) -> None:
        """Leave the group and disconnect. What is settled is committed already: `advance` waited for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._lose_all()  # whoever still waits for a commit waits in vain
        closing = [self._session.stop(STOP_SECONDS)] if self._session else []
        closing += [self._dead_letters.aclose()] if self._dead_letters else []
        await asyncio.gather(*closing)
