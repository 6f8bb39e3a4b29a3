"""The consuming side of a queue, as a shared stream's producer: claims batches, settles by verdict, keeps its lease.

Everything that waits is here, everything that decides is in `plan`, everything that lasts in `queue_file`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress

from headrace import UNORDERED, AdvanceItem, AdvanceOutcome, Capabilities, Message, SharedStreamProducer, SourceUnavailable
from headrace_local.config import IN_MEMORY, LocalConfig
from headrace_local.handle import Handle
from headrace_local.queue_file import Claim, QueueFile, Receipt, Settlement

log = logging.getLogger(__name__)

Event = tuple[Message, Receipt]

FULL_SCAN_SECONDS = 1.0
"""How often to look at all free messages, not only behind the last claim. This finds the lanes that another consumer left."""

PARALLEL_ADVANCES = 1000
"""Advances that come together share a transaction, so more of them at once cost less."""

REASON_LENGTH = 10_000


def capabilities(visibility_timeout: float) -> Capabilities:
    return Capabilities(
        ordered=True, parallel_advances=PARALLEL_ADVANCES, lease_seconds=visibility_timeout, counts_deliveries=True
    )


def lane_of(receipt: Receipt) -> Hashable:
    return UNORDERED if receipt.key is None else receipt.key


def _in_hex(lanes: Iterable[Hashable]) -> list[str]:
    """Lanes as `QueueFile` names them; `UNORDERED` has no name."""
    return [lane.hex().upper() for lane in lanes if isinstance(lane, bytes)]


def plan(batch: Sequence[AdvanceItem], delay: Callable[[int], float], now: float) -> Settlement:
    """What a lane's outcomes mean for its messages. `delay`: number of deliveries so far -> seconds until the next.

    Any failure, or nobody there, keeps a message; else a rejection makes it a dead letter; else it is done. In an ordered
    lane the first that is kept decides for all behind it: they are handed out again, whatever was said of them.
    """
    settlement = Settlement()
    for payload, outcome in batch:
        receipt: Receipt = payload
        if outcome.failed or not (outcome.acked or outcome.rejected):
            settlement.late.append((receipt.id, receipt.receipt, now + delay(receipt.deliveries)))
            if receipt.key is not None:
                break
        elif outcome.rejected:
            settlement.dead.append((receipt.id, receipt.receipt, _reason(outcome)))
        else:
            settlement.done.append((receipt.id, receipt.receipt))
    return settlement


def _reason(outcome: AdvanceOutcome) -> str:
    reason = "; ".join(f"{who}: {reason or 'no reason given'}" for who, reason, _ in outcome.rejections) or "rejected"
    # It may quote the message: what is no text must not keep it from being buried.
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()[:REASON_LENGTH]


class LocalProducer(SharedStreamProducer):
    """One consumer of a queue. Others may share the queue, in this process or another: a lane is with one of them at a time."""

    def __init__(self, config: LocalConfig) -> None:
        self.capabilities = capabilities(config.visibility_timeout)
        self._config = config
        self._handle: Handle | None = None
        self._owner = 0
        self._receipt = 0
        self._heartbeat: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

        self._after = 0
        self._next_due: float | None = None
        self._next_scan = 0.0  # by the monotonic clock; what is due is due by the file's, the calendar's
        self._version = 0

        self._all_paused = False
        self._paused: set[Hashable] = set()
        # Lanes with a failed event, until the advance that says so has returned: what is handed out before is the old run.
        self._breaking: set[Hashable] = set()

        self._unsettled: list[tuple[Settlement, asyncio.Future[None]]] = []
        self._settling: asyncio.Task[None] | None = None

    # --- handing out --------------------------------------------------------------------------------------------------

    async def open_batches(self) -> AsyncIterator[Sequence[Event]]:
        handle = await self._open()
        while not self._closed:
            self._wake.clear()
            claim = await self._claim(handle)
            if claim is not None and claim.events:
                if batch := await self._admit(handle, claim):
                    yield batch
            else:
                await self._idle()

    def pause(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._all_paused = True
        else:
            self._paused.add(lane)

    def resume(self, lane: Hashable | None = None) -> None:
        if lane is None:
            self._all_paused = False
        else:
            self._paused.discard(lane)
        self._look_at_all()

    def get_advance_lane(self, broker_payload: Receipt) -> Hashable:
        return lane_of(broker_payload)

    async def _open(self) -> Handle:
        if self._handle is not None:
            raise RuntimeError("a producer serves one poll: make another")
        self._handle = handle = Handle.get(self._config.path)
        self._owner = await handle.run(QueueFile.register, self._config.queue, self._config.visibility_timeout)
        self._loop = asyncio.get_running_loop()
        handle.listen(self._published)
        self._heartbeat = asyncio.create_task(self._keep_lease(handle), name=f"headrace-local lease {self._owner}")
        return handle

    def _published(self, queue: str) -> None:
        """Called in the file's thread."""
        if self._loop is not None and queue == self._config.queue:
            with suppress(RuntimeError):  # our loop has ended without an aclose
                self._loop.call_soon_threadsafe(self._wake.set)

    async def _claim(self, handle: Handle) -> Claim | None:
        if self._failure is not None:
            raise self._failure
        if self._all_paused:
            return None
        if time.monotonic() >= self._next_scan:
            self._next_scan = time.monotonic() + FULL_SCAN_SECONDS
            self._after = 0
        held = self._paused | self._breaking
        self._receipt += 1
        claim = await handle.run(
            QueueFile.claim,
            self._config.queue,
            self._owner,
            self._receipt,
            after=self._after,
            limit=self._config.batch_size,
            held=_in_hex(held),
            unordered=UNORDERED not in held,
        )
        self._next_due = claim.next_due
        if claim.events:
            self._after = claim.events[-1][1].id
        return claim

    async def _admit(self, handle: Handle, claim: Claim) -> Sequence[Event]:
        """Give back what was paused or broken while the claim was under way; the rest may be handed out."""
        events = claim.events
        while (self._all_paused or self._paused or self._breaking) and (lanes := self._held_of(events)):
            await handle.run(QueueFile.give_back, self._owner, claim.events[0][1].receipt, _in_hex(lanes), UNORDERED in lanes)
            self._after = 0
            events = [event for event in events if lane_of(event[1]) not in lanes]
        return events

    def _held_of(self, events: Sequence[Event]) -> set[Hashable]:
        lanes = {lane_of(receipt) for _, receipt in events}
        return lanes if self._all_paused else lanes & (self._paused | self._breaking)

    async def _idle(self) -> None:
        """Wait for a publication in this process, a change to the file by another, or a message that is due."""
        assert self._handle is not None
        while not self._wake.is_set():
            waits = [self._config.poll_interval]
            if self._next_due is not None:
                waits.append(self._next_due - time.time())
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.001, min(waits))):
                    await self._wake.wait()
            if self._all_paused:
                continue
            if time.monotonic() >= self._next_scan or (self._next_due is not None and time.time() >= self._next_due):
                return
            if self._config.path != IN_MEMORY:
                version = await self._handle.run(QueueFile.version)
                if version != self._version:
                    self._version = version
                    return

    def _look_at_all(self) -> None:
        self._next_scan = 0.0
        self._wake.set()

    # --- settling -----------------------------------------------------------------------------------------------------

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        settlement = plan(batch, self._delay, time.time())
        lane = lane_of(batch[0].broker_payload)
        breaks = bool(settlement.late) and lane is not UNORDERED
        if breaks:
            self._breaking.add(lane)
        await self._settle(settlement)
        if breaks:
            # Not in a `finally`: a call that failed or was cancelled is made again, and the lane waits for that one.
            self._breaking.discard(lane)
        if settlement.late:
            self._look_at_all()

    async def _settle(self, settlement: Settlement) -> None:
        settled = asyncio.get_running_loop().create_future()
        self._unsettled.append((settlement, settled))
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_waiting(), name=f"headrace-local settle {self._owner}")
        await settled

    async def _settle_waiting(self) -> None:
        """Apply what waits in one transaction; what comes meanwhile is the next."""
        assert self._handle is not None
        try:
            while self._unsettled:
                group, self._unsettled = self._unsettled, []
                together = Settlement()
                for settlement, _ in group:
                    together.add(settlement)
                error = None
                try:
                    await self._handle.run(QueueFile.settle, self._config.queue, self._owner, together)
                except Exception as caught:  # belongs to those who wait
                    error = caught
                for _, settled in group:
                    if not settled.done():
                        settled.set_result(None) if error is None else settled.set_exception(error)
        finally:
            self._settling = None

    def _delay(self, deliveries: int) -> float:
        longest = min(self._config.backoff * 2.0 ** min(deliveries - 1, 64), self._config.max_backoff)
        return longest * random.uniform(0.75, 1.0)

    # --- living and dying ---------------------------------------------------------------------------------------------

    async def _keep_lease(self, handle: Handle) -> None:
        while True:
            await asyncio.sleep(self._config.visibility_timeout / 3)
            try:
                alive = await handle.run(QueueFile.renew, self._owner, self._config.visibility_timeout)
            except SourceUnavailable as error:
                log.warning("lease not extended, tried again: %s", error)  # nobody can take it while the file is locked
                continue
            except Exception as error:
                self._failure = error
            else:
                if alive:
                    continue
                self._failure = SourceUnavailable(
                    f"the lease on queue {self._config.queue!r} ran out (nothing ran here for "
                    f"{self._config.visibility_timeout:g} s) and its messages were taken over: opening anew"
                )
            self._wake.set()
            return

    async def stats(self) -> Mapping[str, float]:
        """What the queue holds: see `QueueFile.stats`; `lag` is all that is not settled. Empty until the stream is opened."""
        if self._handle is None or self._closed:
            return {}
        stats = await self._handle.run(QueueFile.stats, self._config.queue)
        return {**stats, "lag": stats["ready"] + stats["delayed"] + stats["in_flight"]}

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        if self._handle is None:
            return
        handle = self._handle
        try:
            if self._heartbeat is not None:
                self._heartbeat.cancel()
                handle.unlisten(self._published)
            if self._settling is not None:
                await self._settling
            if self._owner:
                await handle.run(QueueFile.release, self._owner)
        finally:
            await handle.aclose()
