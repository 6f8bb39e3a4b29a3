"""Where a lane starts: at the group's position, and where that never was, or is gone, as the config says, and reported.

aiokafka could do this by itself (`auto_offset_reset`), but it treats a position that retention deleted, or that a new topic of
the same name does not have, like one that never was, and says nothing. So it is given none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from aiokafka import TopicPartition

from headrace import SourceMisconfigured
from headrace_kafka.client import GroupConsumer
from headrace_kafka.config import KafkaConfig
from headrace_kafka.lanes import Change, Lane, Lanes

log = logging.getLogger(__name__)


class Positions:
    """Places the lanes of one consumer. `started` is called with each lane that may be read from now on, `changed` when a lane
    was ended for its position. Both methods raise aiokafka's errors and `SourceMisconfigured`, and may be cancelled."""

    def __init__(
        self,
        config: KafkaConfig,
        consumer: GroupConsumer,
        lanes: Lanes,
        *,
        started: Callable[[Lane], None],
        changed: Callable[[Change], None],
    ) -> None:
        self._config = config
        self._consumer = consumer
        self._lanes = lanes
        self._started = started
        self._changed = changed
        self.gone = 0
        """How often a position was not in its partition any more."""

    async def place(self, lanes: Sequence[Lane]) -> None:
        """Start new lanes."""
        committed = await asyncio.gather(*(self._consumer.committed(lane.key) for lane in lanes))
        without = []
        for lane, offset in zip(lanes, committed, strict=True):
            if offset is None:
                without.append(lane)
            else:
                self._start(lane, offset, offset)
        if not without:
            return
        keys = [lane.key for lane in without]
        match self._config.auto_offset_reset:
            case "earliest":
                starts = await self._consumer.beginning_offsets(keys)
            case "latest":
                starts = await self._consumer.end_offsets(keys)
            case _:
                names = ", ".join(lane.name for lane in without)
                raise SourceMisconfigured(f"group {self._config.group_id!r} has no position in {names} (auto_offset_reset: none)")
        for lane in without:
            self._start(lane, starts[lane.key], None)

    def _start(self, lane: Lane, position: int, committed: int | None) -> None:
        if lane.is_alive and lane.position is None:
            lane.place(position, committed)
            self._started(lane)

    async def replace(self, lane: Lane, offset: int) -> None:
        """The lane's next offset is not in its partition, says the broker: report what is missing, then stop or go on."""
        key: TopicPartition = lane.key
        first = (await self._consumer.beginning_offsets([key]))[key]
        end = (await self._consumer.end_offsets([key]))[key]
        if not lane.is_alive or lane.ahead != offset:
            return
        if offset < first:
            what = f"{first - offset} messages before offset {first} are gone (retention)"
        else:
            what = f"the partition ends at {end}: the topic was made anew, or lost its end"
        report = f"group {self._config.group_id!r} is at offset {offset} of {lane.name}, but {what}"
        self.gone += 1
        policy = self._config.on_offset_gone
        if policy == "fail":
            raise SourceMisconfigured(f"{report}; set on_offset_gone to earliest or latest, or set the group's offset")
        to = first if policy == "earliest" else end
        log.error("%s; going on at offset %d (on_offset_gone: %s)", report, to, policy)
        new = self._lanes.replace(lane)  # a new life: the offsets of the old one may be other messages now
        self._changed(Change(lost=(lane,), kept=(), new=(new,)))
        self._start(new, to, None)
