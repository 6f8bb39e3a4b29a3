"""Producers with one bug each, made from `MemoryProducer`. The conformance suite catches every one of them.

They are there to test the suite, and to show what it looks for; `FAULTS` lists them with the scenario that is about the bug.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Final

from headrace.connector import Message
from headrace.streams.contract import AdvanceItem, AdvanceOutcome
from headrace.testing.memory import DeadLetter, Event, MemoryBroker, MemoryProducer, Receipt


def changed(message: Message, **fields: object) -> Message:
    """A copy of a message with other fields."""
    given = {name: getattr(message, name) for name in ("value", "key", "headers", "id", "source", "timestamp", "delivery_count")}
    return Message(**{**given, **fields})


class ConnectsWhenCreated(MemoryProducer):
    def __init__(self, broker: MemoryBroker, *, batch_size: int = 100) -> None:
        super().__init__(broker, batch_size=batch_size)
        broker.consumers.append(self)


class DecodesText(MemoryProducer):
    """Takes every value for UTF-8."""

    def take(self) -> list[Event]:
        return [
            (changed(message, value=message.value and message.value.decode(errors="replace").encode()), receipt)
            for message, receipt in super().take()
        ]


class LosesRepeatedHeaders(MemoryProducer):
    def take(self) -> list[Event]:
        return [(changed(message, headers=tuple(dict(message.headers).items())), receipt) for message, receipt in super().take()]


class TurnsNullIntoEmpty(MemoryProducer):
    def take(self) -> list[Event]:
        return [(changed(message, value=message.value or b""), receipt) for message, receipt in super().take()]


class DropsUnkeyedMessages(MemoryProducer):
    def take(self) -> list[Event]:
        events = super().take()
        for message, receipt in events:
            if message.key is None:
                self.broker.delete(receipt)
        return [event for event in events if event[0].key is not None]


class NamesEachDelivery(MemoryProducer):
    """Its ids are of the hand-out, not of the message."""

    _numbers = itertools.count()

    def take(self) -> list[Event]:
        return [(changed(message, id=f"{message.id}/{next(self._numbers)}"), receipt) for message, receipt in super().take()]


class NamesTheContent(MemoryProducer):
    """Its ids are of the value: equal messages have one id."""

    def take(self) -> list[Event]:
        return [(changed(message, id=repr(message.value)), receipt) for message, receipt in super().take()]


class LosesOrder(MemoryProducer):
    def take(self) -> list[Event]:
        return super().take()[::-1]


class SplitsLanes(MemoryProducer):
    """Gives every second message of a key another lane."""

    def get_advance_lane(self, broker_payload: Receipt) -> Hashable:
        return (broker_payload.lane, broker_payload.offset % 2)


class SeesOnlyWhatWasThere(MemoryProducer):
    """Nothing wakes it."""

    def wake(self) -> None:
        pass


class ForgetsBeyondABatch(MemoryProducer):
    """Loses what a batch has no room for."""

    def take(self) -> list[Event]:
        events = super().take()
        if len(events) == self.batch_size:
            self.broker.delete(events.pop()[1])
        return events


class AcksOnHandOut(MemoryProducer):
    """Settles what it hands out, before anybody had it."""

    def take(self) -> list[Event]:
        events = super().take()
        for _, receipt in events:
            self.broker.delete(receipt)
        return events


class AcksNothing(MemoryProducer):
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        await asyncio.sleep(0)
        if all(item.outcome.is_clean for item in batch):
            return
        await super().advance(batch)


class CommitsFailed(MemoryProducer):
    @staticmethod
    def is_kept(outcome: AdvanceOutcome) -> bool:
        return not any(outcome[:3])


class CommitsWhatNobodySaw(MemoryProducer):
    @staticmethod
    def is_kept(outcome: AdvanceOutcome) -> bool:
        return outcome.failed > 0


class NeverRedelivers(MemoryProducer):
    def settle(self, item: AdvanceItem) -> None:
        if not self.is_kept(item.outcome):
            super().settle(item)


class RedeliversAtOnce(MemoryProducer):
    """A hot loop: no backoff."""

    def settle(self, item: AdvanceItem) -> None:
        self.broker.backoff = 0.0
        super().settle(item)


class DropsRejected(MemoryProducer):
    """Settles what was rejected without a dead letter."""

    def settle(self, item: AdvanceItem) -> None:
        if item.outcome.rejected and not self.is_kept(item.outcome):
            self.broker.delete(item.broker_payload)
        else:
            super().settle(item)


class KeepsRejected(MemoryProducer):
    """Writes a dead letter and does not settle."""

    def settle(self, item: AdvanceItem) -> None:
        if item.outcome.rejected and not self.is_kept(item.outcome):
            held = {receipt: message for message, receipt in self.broker.in_flight(self)}
            self.broker.dead_letters.append(DeadLetter(held[item.broker_payload], "not an order"))
        else:
            super().settle(item)


class DeadLettersFirst(MemoryProducer):
    """Puts a rejection before a failure: who failed the message never gets it again."""

    @staticmethod
    def is_kept(outcome: AdvanceOutcome) -> bool:
        return not outcome.rejected and MemoryProducer.is_kept(outcome)


class DeadLettersWithoutReason(MemoryProducer):
    def settle(self, item: AdvanceItem) -> None:
        super().settle(item._replace(outcome=item.outcome._replace(rejections=())))


class CountsNothing(MemoryProducer):
    """Says it counts deliveries, and says 1 each time."""

    def take(self) -> list[Event]:
        return [(changed(message, delivery_count=1), receipt) for message, receipt in super().take()]


class CountsForTheLane(MemoryProducer):
    """A failure costs everything behind it a delivery too."""

    def settle(self, item: AdvanceItem) -> None:
        if self.is_kept(item.outcome):
            for _, receipt in self.broker.in_flight(self):
                if receipt.lane == item.broker_payload.lane and receipt.offset > item.broker_payload.offset:
                    self.broker.postpone(receipt, self.now() - self.broker.max_backoff)
        super().settle(item)


class BreaksOnlyTheEvent(MemoryProducer):
    """Hands the failed event out again alone: what was behind it never comes."""

    def settle(self, item: AdvanceItem) -> None:
        if self.is_kept(item.outcome):
            self.broker.postpone(item.broker_payload, self.now())
        else:
            super().settle(item)


class RequeuesAtTheEnd(MemoryProducer):
    """Publishes a failed message anew: it comes behind what was behind it."""

    def settle(self, item: AdvanceItem) -> None:
        if self.is_kept(item.outcome):
            failed = next(message for message, receipt in self.broker.in_flight(self) if receipt == item.broker_payload)
            self.broker.delete(item.broker_payload)
            self.broker.free_lane(self, item.broker_payload.lane)
            self.broker.publish([failed])
        else:
            super().settle(item)


class HandsOutTheOldRun(MemoryProducer):
    """Has read ahead: what it had in its buffer when the lane broke still comes."""

    def __init__(self, broker: MemoryBroker, *, batch_size: int = 100) -> None:
        super().__init__(broker, batch_size=batch_size)
        self._buffer: list[Event] = []

    def settle(self, item: AdvanceItem) -> None:
        if self.is_kept(item.outcome):
            self._buffer = self.broker.in_flight(self)[1:]
        super().settle(item)

    def take(self) -> list[Event]:
        buffered, self._buffer = self._buffer, []
        return buffered or super().take()


class SettlesNothingBesideAFailure(MemoryProducer):
    """Takes a call with a failure for a failure as a whole."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        kept = [item for item in batch if self.is_kept(item.outcome)]
        await super().advance([batch[0]._replace(outcome=kept[0].outcome), *batch[1:]] if kept else batch)


class MakesALaneOfTheUnordered(MemoryProducer):
    """Stops at the first failure where each event settles by itself."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for number, item in enumerate(batch, 1):
            if self.is_kept(item.outcome):
                batch = batch[:number]
                break
        await super().advance(batch)


class BreaksEveryLane(MemoryProducer):
    """While one lane waits for its failed event, none is handed out."""

    def take(self) -> list[Event]:
        return [] if self.broker.next_change(self.now()) is not None else super().take()


class SettlesAnyRun(MemoryProducer):
    """Has no receipts: a settlement from an old run is applied to the new one."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        current = {receipt.offset: receipt for _, receipt in self.broker.in_flight(self)}
        await super().advance(
            [item._replace(broker_payload=current.get(item.broker_payload.offset, item.broker_payload)) for item in batch]
        )


class SettlesOnlyOnce(MemoryProducer):
    """Fails when it is told the same again."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            if not self.broker.held(self, item.broker_payload):
                raise KeyError(item.broker_payload)
        await super().advance(batch)


class BuriesTwice(MemoryProducer):
    """Writes another dead letter when it is told the same again."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            if item.outcome.rejected and not self.broker.held(self, item.broker_payload):
                self.broker.dead_letters.append(self.broker.dead_letters[-1])
        await super().advance(batch)


class SettlesHalfWhenCancelled(MemoryProducer):
    """Takes note of a call before it is done: made again, the call does nothing."""

    def __init__(self, broker: MemoryBroker, *, batch_size: int = 100) -> None:
        super().__init__(broker, batch_size=batch_size)
        self._noted: set[Receipt] = set()

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        fresh = [item for item in batch if item.broker_payload not in self._noted]
        self._noted.update(item.broker_payload for item in fresh)
        if fresh:
            await super().advance(fresh)


class HandsOutBeforeItReturns(MemoryProducer):
    """A cancelled call has broken the lane all the same, and its next run starts before the engine knows."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        for item in batch:
            if self.broker.held(self, item.broker_payload):
                self.settle(item)
                if self.is_kept(item.outcome):
                    break
        self._changed.set()
        await asyncio.sleep(0.01)


class SwallowsOutages(MemoryProducer):
    """Says a call succeeded that the broker never got."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        if self.broker.available:
            await super().advance(batch)


class RaisesItsClientsErrors(MemoryProducer):
    """Lets the client library's error through, which ends the stream."""

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        if not self.broker.available:
            raise ConnectionRefusedError("broker:9092")
        await super().advance(batch)


class IgnoresPause(MemoryProducer):
    def pause(self, lane: Hashable | None = None) -> None:
        pass


class PausesEverything(MemoryProducer):
    """Pauses all lanes where one is meant."""

    def pause(self, lane: Hashable | None = None) -> None:
        super().pause()

    def resume(self, lane: Hashable | None = None) -> None:
        super().resume()


class NeverResumes(MemoryProducer):
    def resume(self, lane: Hashable | None = None) -> None:
        pass


class SwallowsCancellation(MemoryProducer):
    """Takes a cancelled pull for one that timed out (once, so that a test can end it)."""

    swallowed = False

    async def wait(self) -> None:
        try:
            await super().wait()
        except asyncio.CancelledError:
            if self.swallowed:
                raise
            self.swallowed = True


class ReturnsWhenIdle(MemoryProducer):
    """Ends its stream when there is nothing to read."""

    async def open_batches(self) -> AsyncIterator[Sequence[Event]]:
        self._loop = asyncio.get_running_loop()
        self.broker.connect(self)
        while batch := self.take():
            yield batch


class SettlesWhenClosed(MemoryProducer):
    """Acks on the way out what it had handed out."""

    async def aclose(self) -> None:
        for _, receipt in self.broker.in_flight(self):
            self.broker.delete(receipt)
        await super().aclose()


class KeepsItsLease(MemoryProducer):
    """Does not give back what it holds: the next producer waits for it in vain."""

    async def aclose(self) -> None:
        if self in self.broker.consumers:
            self.broker.consumers.remove(self)


class StaysConnected(MemoryProducer):
    async def aclose(self) -> None:
        await super().aclose()
        if self._loop is not None:
            self.broker.consumers.append(self)


class HandsOutWhatOthersHold(MemoryProducer):
    """Takes over, once, what another consumer has in flight."""

    stolen = False

    def take(self) -> list[Event]:
        if events := super().take():
            return events
        others = [consumer for consumer in self.broker.consumers if consumer is not self]
        events = [] if self.stolen else [event for other in others for event in self.broker.in_flight(other)]
        self.stolen = bool(events)
        return events


FAULTS: Final[dict[type[MemoryProducer], str]] = {
    ConnectsWhenCreated: "test_connects_when_opened_and_not_before",
    DecodesText: "test_hands_out_what_was_published",
    LosesRepeatedHeaders: "test_carries_every_legal_message",
    TurnsNullIntoEmpty: "test_carries_every_legal_message",
    DropsUnkeyedMessages: "test_carries_every_legal_message",
    NamesEachDelivery: "test_ids_are_unique_and_stable",
    NamesTheContent: "test_ids_are_unique_and_stable",
    LosesOrder: "test_lanes_keep_the_order_of_their_key",
    SplitsLanes: "test_lanes_keep_the_order_of_their_key",
    SeesOnlyWhatWasThere: "test_hands_out_what_is_published_while_open",
    ForgetsBeyondABatch: "test_a_large_backlog_comes_once_and_in_order",
    AcksOnHandOut: "test_what_a_crashed_producer_held_comes_again",
    AcksNothing: "test_acked_is_gone",
    CommitsFailed: "test_failed_comes_again",
    CommitsWhatNobodySaw: "test_nobody_online_comes_again",
    NeverRedelivers: "test_failed_comes_again",
    RedeliversAtOnce: "test_redelivery_is_not_a_hot_loop",
    DropsRejected: "test_rejected_is_dead_lettered_and_gone",
    KeepsRejected: "test_rejected_is_dead_lettered_and_gone",
    DeadLettersWithoutReason: "test_rejected_is_dead_lettered_and_gone",
    DeadLettersFirst: "test_a_failure_outweighs_a_rejection",
    CountsNothing: "test_counts_deliveries",
    CountsForTheLane: "test_counts_deliveries",
    BreaksOnlyTheEvent: "test_r15_a_broken_lane_is_handed_out_again_from_the_failed_event",
    RequeuesAtTheEnd: "test_r15_what_is_behind_a_failed_event_waits_for_it",
    HandsOutTheOldRun: "test_r15_a_broken_lane_is_handed_out_again_from_the_failed_event",
    SettlesNothingBesideAFailure: "test_r15_a_rejection_before_the_failed_event_stays_settled",
    MakesALaneOfTheUnordered: "test_unordered_events_settle_in_any_order",
    BreaksEveryLane: "test_a_broken_lane_does_not_stop_the_others",
    SettlesAnyRun: "test_late_items_of_an_old_run_are_harmless",
    SettlesOnlyOnce: "test_advance_is_idempotent",
    BuriesTwice: "test_advance_is_idempotent",
    SettlesHalfWhenCancelled: "test_a_cancelled_advance_can_be_made_again",
    HandsOutBeforeItReturns: "test_r15_a_lane_is_not_handed_out_before_its_advance_returned",
    SwallowsOutages: "test_an_outage_raises_source_unavailable",
    RaisesItsClientsErrors: "test_an_outage_raises_source_unavailable",
    IgnoresPause: "test_pause_holds_everything",
    PausesEverything: "test_pause_holds_one_lane",
    NeverResumes: "test_pause_holds_everything",
    SwallowsCancellation: "test_aclose_is_prompt_and_releases",
    ReturnsWhenIdle: "test_hands_out_what_is_published_while_open",
    SettlesWhenClosed: "test_the_next_producer_continues",
    KeepsItsLease: "test_the_next_producer_continues",
    StaysConnected: "test_aclose_is_prompt_and_releases",
    HandsOutWhatOthersHold: "test_a_lane_is_with_one_producer_at_a_time",
}
"""Every faulty producer, with the scenario of `ProducerConformance` that is about its bug. Others may catch it too."""
