"""Takes stored events to their targets.

One loop claims what is due, as soon as it is told (`wake`) and at the latest after `poll_interval`; each claimed event is a
task that calls its target and marks the result; one loop renews the claims. Nothing is lost: an event that is not marked
comes again when its claim expires. So a target may see an event twice, and knows it by its identity.
Read next: `attempt.py` for what becomes of an event, `claims.py` for the leases, `slots.py` for who gets how much.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from headrace.dispatch.attempt import Verdict, attempt
from headrace.dispatch.backoff import Backoff
from headrace.dispatch.claims import Claim, ClaimKeeper
from headrace.dispatch.config import DispatchConfig
from headrace.dispatch.observer import DispatchObserver
from headrace.dispatch.outbox import STORE_BACKOFF, DispatchStore, log_store_error
from headrace.dispatch.slots import Slots
from headrace.dispatch.targets.base import Target
from headrace.dispatch.untargeted import UntargetedWatch
from headrace.errors import ConfigError
from headrace.store import StoredEvent

CLAIM_GAP: Final = 0.005
"""Seconds between claims while events keep coming, so that slots which become free meanwhile are claimed for together."""

logger = structlog.stdlib.get_logger("headrace.dispatch")
level = logging.getLogger("headrace.dispatch")


@dataclass(eq=False, slots=True)
class _Route:
    """A trigger's target, and how many calls to it are under way."""

    target: Target
    calls: int = 0


@dataclass(frozen=True, slots=True)
class DispatchStatus:
    """For readiness and metrics."""

    running: bool
    calls: int
    """Calls under way."""
    store_available: bool
    """Whether the store answered the last claim."""
    untargeted: frozenset[str]
    """Triggers whose events wait, since none of the targets is theirs."""


class Dispatcher:
    """Delivers the events of the triggers that have a target; those of others stay pending and are reported.

    It owns the targets: it closes one that `set_targets` replaces after its last call, and all at `stop`. `owner` names this
    process's life in the store. Raises `ConfigError` where a target's timeout is not shorter than the lease.
    """

    def __init__(
        self,
        store: DispatchStore,
        targets: Mapping[str, Target],
        *,
        config: DispatchConfig | None = None,
        observer: DispatchObserver | None = None,
        owner: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._outbox = store.outbox
        self._config = config or DispatchConfig()
        self._observer = observer or DispatchObserver()
        self._owner = owner or uuid.uuid4().hex
        self._clock = clock
        self._backoff = Backoff(self._config.retry_first, self._config.retry_longest)
        self._slots = Slots(self._config.max_concurrency)
        self._keeper = ClaimKeeper(self._outbox, self._config.lease_seconds)
        self._routes: dict[str, _Route] = {}
        self._replaced: list[_Route] = []
        self._hungry: set[str] = set()  # triggers that may have events due
        self._served: set[str] = set()  # those that had events in their last claim
        self._unused: list[StoredEvent] = []  # claims to give back
        self._untargeted = UntargetedWatch(store, self._observer)
        self._store_available = True
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self.set_targets(targets)

    def set_targets(self, targets: Mapping[str, Target]) -> None:
        """Use these from now on. An unchanged target is the same object again; a call under way ends with the one it has."""
        if problems := self._config.problems({trigger_id: target.config for trigger_id, target in targets.items()}):
            raise ConfigError(problems)
        before, self._routes = self._routes, {}
        for trigger_id, target in targets.items():
            route = before.get(trigger_id)
            self._routes[trigger_id] = route if route is not None and route.target is target else _Route(target)
        self._replaced += [route for trigger_id, route in before.items() if self._routes.get(trigger_id) is not route]
        self._slots.set_limits({trigger_id: target.config.max_concurrency for trigger_id, target in targets.items()})
        self._untargeted.watch(targets)
        self._hungry.clear()
        self.wake()

    def start(self) -> None:
        """Begin. Call it once, on the running loop."""
        self._main = asyncio.create_task(self._run(), name="dispatcher")
        self._main.add_done_callback(_log_failure)

    def wake(self, trigger_ids: Iterable[str] | None = None) -> None:
        """Look for due events now: of these triggers, or of all. Never blocks."""
        self._hungry.update(self._routes if trigger_ids is None else self._routes.keys() & set(trigger_ids))
        self._news.set()

    def status(self) -> DispatchStatus:
        running = self._main is not None and not self._main.done() and not self._stopping.is_set()
        return DispatchStatus(running, self._slots.taken, self._store_available, self._untargeted.found)

    async def stop(self, timeout: float = 30.0, *, drain: bool = True) -> None:
        """Claim no more, finish the calls under way, give back what is not begun or not finished, and close the targets.

        Takes at most about `timeout` seconds: near its end the calls still under way are cancelled, and their events given
        back without counting the attempt. Not `drain`: they are cancelled at once. What cannot be given back or marked in
        time, since the store is away, comes again when its claim expires. Cancelling it stops everything at once.
        """
        end = asyncio.get_running_loop().time() + timeout
        self._stopping.set()
        self._news.set()
        if self._main is not None:
            try:
                if drain:
                    await asyncio.wait({self._main}, timeout=timeout - min(2.0, timeout / 4))
                for claim in list(self._keeper.held):
                    claim.give_up()
                await asyncio.wait({self._main}, timeout=_left(end))
            finally:
                self._main.cancel()
            await asyncio.wait({self._main}, timeout=_left(end))
        closing = {asyncio.create_task(_close(route.target)) for route in (*self._routes.values(), *self._replaced)}
        if closing:
            _, late = await asyncio.wait(closing, timeout=_left(end))
            for task in late:
                task.cancel()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as services:
            background = [services.create_task(self._keeper.run()), services.create_task(self._untargeted.run())]
            async with asyncio.TaskGroup() as deliveries:
                await self._claim_until_stopping(deliveries)
            for task in background:
                task.cancel()
        await self._release_unused()

    async def _claim_until_stopping(self, deliveries: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        failures, next_poll = 0, 0.0
        while not self._stopping.is_set():
            if loop.time() >= next_poll:
                self._hungry.update(self._routes)
                next_poll = loop.time() + self._config.poll_interval
            self._news.clear()
            claimed = 0
            try:
                if not self._is_behind:
                    claimed = await self._claim_due(deliveries)
                    self._store_answered()
            except Exception as error:
                failures += 1
                self._store_failed("events are not claimed", error)
                await self._pause(STORE_BACKOFF.delay(failures))
                continue
            failures = 0
            await self._release_unused()
            self._close_replaced(deliveries)
            if claimed:
                await self._pause(CLAIM_GAP)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(next_poll):
                        await self._news.wait()

    @property
    def _is_behind(self) -> bool:
        """Whether more results wait to be stored than calls could run: to claim more would only fill the memory."""
        return len(self._keeper.held) - self._slots.taken > max(self._config.max_concurrency, len(self._routes))

    async def _claim_due(self, deliveries: asyncio.TaskGroup) -> int:
        """Claim once for each group of hungry triggers, and start what was claimed. Returns how many."""
        loop = asyncio.get_running_loop()
        claimed = 0
        for group in self._slots.groups(self._hungry, self._served):
            asked = {trigger_id: room for trigger_id in group if (room := self._slots.room(trigger_id))}
            if not asked or self._stopping.is_set():  # a group before it has taken the last shared slots
                continue
            limit = min(asked.values())
            self._hungry.difference_update(asked)  # a wake meanwhile makes them hungry again
            asked_at = loop.time()
            try:
                events = await self._outbox.claim(self._owner, limit, self._config.lease_seconds, triggers=asked)
            except BaseException:
                self._hungry.update(asked)
                raise
            self._served.difference_update(asked)
            if events:  # there may be more, also behind a claim that is not full: large events come few at a time
                self._hungry.update(asked)
                self._served.update(event.trigger_id for event in events)
            for event in events:
                self._begin(event, asked_at + self._config.lease_seconds, deliveries)
            claimed += len(events)
        return claimed

    def _begin(self, event: StoredEvent, held_until: float, deliveries: asyncio.TaskGroup) -> None:
        route = self._routes.get(event.trigger_id)
        if route is None or self._stopping.is_set() or asyncio.get_running_loop().time() >= held_until:
            self._unused.append(event)
            return
        route.calls += 1
        self._slots.take(event.trigger_id)
        claim = Claim(event)
        self._keeper.held.add(claim)
        task = deliveries.create_task(self._deliver(claim, route))
        claim.begin_call(task, held_until)
        task.add_done_callback(partial(self._ended, claim, route))

    async def _deliver(self, claim: Claim, route: _Route) -> None:
        event = claim.event
        structlog.contextvars.bind_contextvars(event_id=event.identity, trigger=event.trigger_id, attempt=event.attempt)
        verdict = await attempt(route.target, event, self._clock())
        self._end_call(claim, route)
        held = await self._mark(event, verdict)
        self._observer.attempted(event.trigger_id, route.target.kind, verdict.outcome if held else "lost", claim.call_seconds)

    async def _mark(self, event: StoredEvent, verdict: Verdict) -> bool:
        """Store what became of the event, however long that takes. False: the claim was lost, and another has it."""
        delay = self._backoff.delay(event.attempt, verdict.retry_after) if verdict.outcome == "retry" else 0.0
        failures = 0
        while True:
            try:
                match verdict.outcome:
                    case "delivered":
                        held = await self._outbox.mark_delivered(event, verdict.answer)
                    case "retry":
                        held = await self._outbox.mark_retry(event, delay, verdict.answer)
                    case "dead":
                        held = await self._outbox.mark_dead(event, verdict.answer)
                break
            except Exception as error:
                failures += 1
                self._store_failed("results are not stored", error)
                await asyncio.sleep(STORE_BACKOFF.delay(failures))
        if not held:
            logger.warning("the result came too late: another has the event by now", outcome=verdict.outcome)
        elif verdict.outcome == "delivered":
            if level.isEnabledFor(logging.DEBUG):  # structlog takes ten times as long to find out
                logger.debug("delivered", answer=verdict.answer)
        elif verdict.outcome == "retry":
            logger.info("not delivered", answer=verdict.answer, retry_in=round(delay, 1), exc_info=verdict.error)
        else:
            logger.warning("the event is dead", answer=verdict.answer, exc_info=verdict.error)
        return held

    def _end_call(self, claim: Claim, route: _Route) -> None:
        claim.end_call()
        route.calls -= 1
        self._slots.free(claim.event.trigger_id)
        self._news.set()

    def _ended(self, claim: Claim, route: _Route, task: asyncio.Task[None]) -> None:
        """Close a task's books. A callback, since a task that is cancelled before its first step runs nothing of its own."""
        self._keeper.held.discard(claim)
        if not claim.is_calling:
            return
        self._end_call(claim, route)
        event = claim.event
        if claim.lost:
            logger.warning("call cancelled: the claim is lost", event_id=event.identity, trigger=event.trigger_id)
            self._observer.attempted(event.trigger_id, route.target.kind, "lost", claim.call_seconds)
        else:
            self._unused.append(event)

    async def _release_unused(self) -> None:
        events, self._unused = self._unused, []
        if not events:
            return
        try:
            await self._outbox.release(events)
        except Exception as error:
            self._store_failed("claims are not given back: their events come again when they expire", error)
        else:
            self._observer.released(len(events))

    def _close_replaced(self, tasks: asyncio.TaskGroup) -> None:
        for route in [route for route in self._replaced if not route.calls]:
            self._replaced.remove(route)
            tasks.create_task(_close(route.target))

    def _store_failed(self, what: str, error: Exception) -> None:
        log_store_error(what, error, first=self._store_available)
        self._store_available = False

    def _store_answered(self) -> None:
        if not self._store_available:
            logger.info("the store answers again")
        self._store_available = True

    async def _pause(self, seconds: float) -> None:
        """Sleep, and wake up early to stop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def _close(target: Target) -> None:
    try:
        await target.aclose()
    except Exception:
        logger.exception("a target did not close", target=target.kind)


def _left(end: float) -> float:
    """Seconds until `end`, and a moment at least: long enough for what only needs the loop."""
    return max(0.1, end - asyncio.get_running_loop().time())


def _log_failure(main: asyncio.Task[None]) -> None:
    if not main.cancelled() and (error := main.exception()) is not None:
        logger.critical("the dispatcher has failed: nothing is delivered any more", exc_info=error)
