"""One consumer in its group: joins, places partitions, polls, and tells the lanes what a rebalance did.

aiokafka is given as little to decide as possible. It commits nothing, resets nothing, and pauses nothing: its pauses are lost
at a rebalance, so a poll names the partitions it wants instead, and what comes of any other is read again later. After a
rebalance the partitions that stayed are sought to where they were, and new ones are placed by `Positions`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from aiokafka import ConsumerRebalanceListener, TopicPartition, errors
from aiokafka.errors import KafkaError

from headrace import HeadraceError
from headrace_kafka.client import NOBODY, Membership, build_consumer, require_topics, start, stop
from headrace_kafka.commits import Commits
from headrace_kafka.config import KafkaConfig
from headrace_kafka.errors import explain, same_instance_id
from headrace_kafka.lanes import Change, Lane, Lanes
from headrace_kafka.message import Records
from headrace_kafka.positions import Positions

log = logging.getLogger(__name__)

NOTHING: Final = TopicPartition("", 0)
"""A partition nobody has: a poll that asks for it counts as one, and takes no records."""
POLL_SECONDS: Final = 0.1
"""How long a poll waits for records: within this, a partition that is opened is asked for."""
EXPULSIONS: Final = 3
"""Lost memberships within a few session timeouts, after which a static member is not alone with its id."""


class Session(ConsumerRebalanceListener):  # type: ignore[misc]
    """A consumer from `connect` to `stop`. `changed` is called with what each assignment did to the lanes."""

    def __init__(self, config: KafkaConfig, lanes: Lanes, commits: Commits, changed: Callable[[Change], None]) -> None:
        self._config = config
        self._lanes = lanes
        self._commits = commits
        self._changed = changed
        self._consumer = build_consumer(config)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: HeadraceError | None = None
        self._membership: Membership = NOBODY
        self._expelled_at: list[float] = []
        self._replacing: set[Lane] = set()
        self._positions = Positions(config, self._consumer, lanes, started=self._started, changed=self._tell)
        self._is_stopped = False
        self._joining_since: float | None = None
        self.is_rebalancing = True
        self.opened = asyncio.Event()
        """Set it when a lane may be read again."""

    # Start and stop

    async def connect(self) -> None:
        """Connect, and look at the topics. Raises `SourceUnavailable` or `SourceMisconfigured`, and leaves nothing open."""
        await start(self._consumer, self._config)
        dead = [] if self._config.dead_letter_topic is None else [self._config.dead_letter_topic]
        try:
            await require_topics(self._consumer, self._config, topics=self._config.topics, dead_letter_topic=dead)
        except BaseException:
            await stop(self._consumer)
            raise

    def join(self) -> None:
        """Join the group. Lanes come and go from now on."""
        self._joining_since = asyncio.get_running_loop().time()
        if self._config.topic_pattern is not None:
            self._consumer.subscribe(pattern=rf"(?:{self._config.topic_pattern})\Z", listener=self)
        else:
            self._consumer.subscribe(topics=list(self._config.topics), listener=self)

    async def stop(self, timeout: float) -> None:
        """Leave the group and disconnect, within the timeout. Lanes are not told."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(timeout):
                await stop(self._consumer)
        except TimeoutError:
            log.warning("the consumer of group %s did not close in time; the broker will notice", self._config.group_id)

    # Reading

    async def poll(self) -> list[tuple[Lane, Records, int]]:
        """The next records of the open lanes, each with the position behind them. Waits `POLL_SECONDS` at most, longer in a
        rebalance. Raises `SourceUnavailable` or `SourceMisconfigured`."""
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        now = loop.time()
        wanted = [lane.key for lane in self._lanes if lane.is_open(now)]
        patience = max(0.0, min(POLL_SECONDS, self._lanes.closed_until(now) - now))
        if not wanted and len(self._lanes):
            await self.keep_membership()
            self.opened.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self.opened.wait()
            return []
        every = len(wanted) == len(self._lanes)  # without names a poll is cheaper; `_accept` sees what slips in
        polled = await self._getmany([] if every else wanted, patience)
        now = loop.time()
        accepted = []
        for key, records in polled.items():
            lane = self._lanes.get(key)
            if lane is not None and (found := self._accept(lane, records, now)):
                accepted.append((lane, found, max(found[-1].offset + 1, self._consumer.position_of(key) or 0)))
        return accepted

    async def keep_membership(self) -> None:
        """Count as polling, and take nothing. aiokafka would leave the group after `max_poll_interval`."""
        await self._getmany([NOTHING], 0.0)

    async def _getmany(self, partitions: Collection[TopicPartition], patience: float) -> Mapping[TopicPartition, Records]:
        try:
            return await self._consumer.getmany(*partitions, timeout_ms=patience * 1000)  # type: ignore[no-any-return]
        except errors.OffsetOutOfRangeError as error:
            for key, offset in error.args[0].items():
                self._replace_lost_position(key, offset)
        except errors.NoOffsetForPartitionError:
            pass  # it is about to be given one
        except errors.ConsumerStoppedError:
            pass
        except KafkaError as error:
            if not (error.retriable or isinstance(error, errors.CorruptRecordException)):
                raise explain(error, self._config) from error
            log.warning("a poll failed, and is tried again: %s", error)
            for lane in self._lanes:  # what aiokafka had taken out of other partitions before one failed is gone: read it again
                self.seek(lane)
        await asyncio.sleep(self._config.retry_backoff)
        return {}

    def _accept(self, lane: Lane, records: Records, now: float) -> Records:
        """What of the records may be handed out: those of an open lane that are new to it. The rest will be read again."""
        if lane.position is None or not lane.is_open(now):
            self.seek(lane)
            return ()
        if records[0].offset < lane.ahead:
            return [record for record in records if record.offset >= lane.ahead]
        return records

    def seek(self, lane: Lane) -> None:
        """Read on where the lane says. What aiokafka has fetched of it is dropped."""
        if lane.position is not None and lane.key in self._consumer.assignment():
            self._consumer.seek(lane.key, lane.ahead)

    def skip_markers(self) -> None:
        """Move quiet lanes past what is no record: transaction markers, aborted transactions, compacted ends."""
        if self.is_rebalancing:
            return
        for lane in self._lanes:
            if (at := self._consumer.position_of(lane.key)) is not None:
                lane.skip_to(at)
        self._commits.request()

    # Committing

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Commit for those of the partitions that are assigned, and return these: aiokafka refuses all for one that is not.

        Raises aiokafka's errors; `CommitFailedError` when this consumer is no member of its group.
        """
        assigned = self._consumer.assignment()
        ours = {key: offset for key, offset in offsets.items() if key in assigned}
        if not ours or not self._consumer.membership.is_valid:
            raise errors.CommitFailedError("this consumer is no member of its group now")
        await self._consumer.commit(ours)
        return ours

    # Rebalances: aiokafka awaits these two between losing an assignment and using the next

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Settle what can be settled soon, and commit nothing from then on. Heartbeats go on meanwhile."""
        if self._is_stopped:
            return
        self.is_rebalancing = True
        self._joining_since = asyncio.get_running_loop().time()
        for task in self._tasks:
            task.cancel()
        if self._consumer.membership.is_valid:
            await self._commits.forbid(self._config.rebalance_grace)
            return
        await self._commits.forbid(0.0)
        if self._membership.is_valid:  # until now: somebody else may have the partitions already
            self._membership = NOBODY
            self._note_expulsion()
            self._tell(self._lanes.assign((), unbroken=False))

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Take the new assignment. Must be quick: there are no heartbeats until it returns."""
        if self._is_stopped:
            return
        membership = self._consumer.membership
        change = self._lanes.assign(assigned, unbroken=membership.follows(self._membership))
        self._membership = membership
        for lane in change.kept:
            self.seek(lane)
        unplaced = [lane for lane in self._lanes if lane.position is None]
        if unplaced:
            self._spawn(self._positions.place(unplaced))
        self.is_rebalancing = False
        self._joining_since = None
        self._commits.allow()
        self._tell(change)

    def _tell(self, change: Change) -> None:
        self._changed(change)
        self._commits.notify()

    def _note_expulsion(self) -> None:
        """Two members with one `group.instance.id` push each other out for ever, and the broker says why only to one that is
        joining at that moment."""
        now = asyncio.get_running_loop().time()
        log.warning("group %s: the broker does not know this member any more; joining again", self._config.group_id)
        if self._config.member_name is None:
            return
        horizon = now - 3 * self._config.session_timeout
        self._expelled_at = [*(at for at in self._expelled_at if at > horizon), now]
        if len(self._expelled_at) >= EXPULSIONS:
            self._failure = same_instance_id(self._config)

    # Where a partition starts

    def _started(self, lane: Lane) -> None:
        self.seek(lane)
        self._commits.request()

    def _replace_lost_position(self, key: TopicPartition, offset: int) -> None:
        lane = self._lanes.get(key)
        if lane is None or lane in self._replacing:
            return
        if lane.ahead != offset:  # it was past a transaction marker
            self.seek(lane)
            return
        self._replacing.add(lane)
        task = self._spawn(self._positions.replace(lane, offset))
        task.add_done_callback(lambda _: self._replacing.discard(lane))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have it done until the next rebalance; what it raises is raised by the next poll."""
        task = asyncio.create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (KafkaError, HeadraceError) as error:
            self._failure = explain(error, self._config)

    # Health

    async def ends(self) -> dict[TopicPartition, int]:
        """Where each placed partition ends, as far as it may be read. Raises aiokafka's errors."""
        keys = [lane.key for lane in self._lanes if lane.position is not None]
        return await self._consumer.end_offsets(keys) if keys else {}

    @property
    def joining_for(self) -> float:
        """Seconds since the group began to rebalance, or to be joined; 0 while this consumer has an assignment."""
        return 0.0 if self._joining_since is None else asyncio.get_running_loop().time() - self._joining_since

    def position_of(self, lane: Lane) -> int | None:
        return self._consumer.position_of(lane.key)

    @property
    def positions_gone(self) -> int:
        return self._positions.gone
