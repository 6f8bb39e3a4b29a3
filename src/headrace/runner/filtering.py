"""A trigger that watches a stream: its filter is run, and run again, until it returns.

A filter that raises gets the event in hand again, after a backoff, without leaving its cohort: order is kept, and nobody else
sees anything again. Too often, and the event is a dead letter of this trigger, which goes on. A filter that is failed by its
stream, or whose stream ends, subscribes again. Whether a failure is the filter's or the stream's is told by the subscription,
never by the exception: a filter may wrap or swallow what its stream raises.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any

from headrace.errors import AckTimeout, SubscriberOverflow
from headrace.runner.backoff import jittered
from headrace.runner.delivery import Delivery
from headrace.runner.keeping import whereabouts
from headrace.runner.observer import Observer
from headrace.runner.place import Place
from headrace.runner.source import Source
from headrace.runner.specs import TriggerSpec
from headrace.runner.submitter import Submitter
from headrace.runner.supervision import END_TIMEOUT, Leave, Phase, Run
from headrace.store import DeadLetter, Store
from headrace.streams.contract import EventInHand
from headrace.triggers.base import BaseEventTrigger

log = logging.getLogger(__name__)


class PlaceLostError(Exception):
    """The subscription has failed, or its stream ended."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class FilterRun(Run):
    """See the module."""

    def __init__(self, spec: TriggerSpec, source: Source, *, store: Store, submitter: Submitter, observer: Observer) -> None:
        super().__init__(spec, observer)
        self.source = source
        self._store = store
        self._place = Place(
            spec.trigger_id,
            source.name,
            source.key,
            manager=source.manager,
            submitter=submitter,
            attempts=store.attempts,
            observer=observer,
            max_attempts=spec.max_attempts,
        )
        self._delivery: Delivery | None = None
        self._lost: asyncio.Future[Exception]
        self._late: EventInHand | None = None

    def identity(self) -> Mapping[str, str]:
        hand = self._place.event_in_hand()
        message = {"message": hand.event_id} if hand is not None and hand.event_id is not None else {}
        return {**super().identity(), "stream": self.source.name, **message}

    async def _run(self) -> None:
        while True:
            self._lost = asyncio.get_running_loop().create_future()
            try:
                trigger = self._build()
                if not isinstance(trigger, BaseEventTrigger):
                    raise TypeError(f"{type(trigger).__name__} watches a stream, so it must be a BaseEventTrigger")
                inner = self.source.subscribe(trigger, self.trigger_id, self._on_failed)
            except Exception as error:
                await self._start_later(error)
                continue
            try:
                await self._attend(trigger, inner)
            except PlaceLostError as lost:
                await self._rejoin_later(lost.error)
            else:
                return

    async def _start_later(self, error: Exception) -> None:
        """The trigger cannot even begin."""
        log.error("%s: cannot be started: %r", self.trigger_id, error, exc_info=error)
        await self._discard()
        self.phase = Phase.WAITING
        self._failed(error)
        self.is_misconfigured = True
        await asyncio.sleep(self._slow_backoff.next())

    async def _rejoin_later(self, error: Exception) -> None:
        """The trigger lost its place; it comes back when its stream may be opened, or after a backoff of its own."""
        await self._discard()
        self.phase = Phase.WAITING
        self._failed(error)
        if (late := self._late) is not None:
            self._late = None
            await self._place.count_attempt(late, str(error))
        if isinstance(error, AckTimeout | SubscriberOverflow):
            await asyncio.sleep(self._backoff.next())
            await self._place.leave(abandon=True)
        else:
            await self.source.turn(error)

    def _on_failed(self, error: Exception) -> None:
        if self._lost.done():
            return
        # Not the event in hand but one whose units are not stored may be what took too long: that is not its attempt.
        if isinstance(error, AckTimeout) and not self._place.unanswered:
            self._late = self._place.event_in_hand()
        self._lost.set_result(error)

    async def _attend(self, trigger: BaseEventTrigger, inner: AsyncIterator[Any]) -> None:
        """Run the filter until it returns. Raises `PlaceLostError`."""
        while True:
            self._running()
            delivery = self._delivery = Delivery(self._place, inner)
            error = await self._drive(trigger, delivery)
            if error is None:
                await self._finish()
                return
            log.warning("%s: its filter raised %s", self.trigger_id, whereabouts(error))
            self._failed(error)
            self.phase = Phase.RETRYING
            await self._discard()
            inner = await self._again(error)
            trigger = await self._rebuild()

    async def _drive(self, trigger: BaseEventTrigger, delivery: Delivery) -> BaseException | None:
        """One run of the filter, in a task of its own: None if it returned, else what it raised. Raises `PlaceLostError`."""
        task = self._start_user_task(lambda: self._filter(trigger, delivery))
        try:
            await asyncio.wait((task, self._lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end_user_task()
            delivery.close()
        if task.done() and not task.cancelled() and task.exception() is None and task.result():
            return None
        self._check_place()
        if task.cancelled():
            return RuntimeError("the filter was cancelled by its own code")
        return task.exception()

    async def _filter(self, trigger: BaseEventTrigger, delivery: Delivery) -> bool:
        """Whether the filter returned of its own accord: not because it swallowed the end of its stream."""
        aiter(delivery)
        events = trigger.filter_shared_stream(delivery)
        try:
            async for event in events:
                delivery.collect(event)
            delivery.move_past()
        finally:
            if (aclose := getattr(events, "aclose", None)) is not None:
                await aclose()
        return not self._lost.done()

    async def _again(self, error: BaseException) -> AsyncIterator[Any]:
        """Wait, then return an iterator that offers the event in hand again, or goes on behind it if it had its attempts."""
        hand = self._place.event_in_hand()
        if hand is None or hand.void:
            await self._pause(self._backoff.next())
            return self._place.resume()
        attempts = await self._place.count_attempt(hand, repr(error))
        if attempts < self.spec.max_attempts:
            await self._pause(jittered(1.0, 30.0, attempts - 1))
            return self._place.resume()
        self._check_place()
        inner = self._place.resume()
        hand = self._place.event_in_hand()
        if hand is not None and not hand.void:
            await anext(inner)  # at once: it is in hand; from here on it is past once its dead letter is stored
            text = "".join(traceback.format_exception(error))
            self._place.give_up(hand, DeadLetter("failed", repr(error), text, attempts))
        return inner

    async def _rebuild(self) -> BaseEventTrigger:
        while True:
            try:
                trigger = self._build()
            except Exception as error:
                log.error("%s: cannot be built again: %r", self.trigger_id, error, exc_info=error)
                self._failed(error)
                await self._pause(self._backoff.next())
            else:
                assert isinstance(trigger, BaseEventTrigger)
                return trigger

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless the place is lost meanwhile."""
        await asyncio.wait((self._lost,), timeout=seconds)
        self._check_place()

    def _check_place(self) -> None:
        if self._lost.done():
            raise PlaceLostError(self._lost.result())

    async def _finish(self) -> None:
        """The filter has returned: make that durable, then leave."""
        await self._discard()
        await self._place.answered()
        await self._store_finished(self._store.triggers, "its filter returned")
        await self._place.leave(abandon=False)

    async def _finish_event(self, grace: float) -> None:
        user_task = self._user_task
        if user_task is None or self._delivery is None or self._place.event_in_hand() is None:
            return
        parked = asyncio.ensure_future(self._delivery.park().wait())
        await asyncio.wait((user_task, parked), timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        parked.cancel()

    async def _leave(self, how: Leave) -> None:
        if how is Leave.WITH_STREAM:
            return
        await self._place.answered(END_TIMEOUT)  # what is stored but not confirmed would come again
        hand = self._place.event_in_hand()
        if how is Leave.REPLACED or (hand is not None and not hand.void):
            await self._place.leave(abandon=True)
        if how is not Leave.REPLACED:
            await self._place.leave(abandon=False)
