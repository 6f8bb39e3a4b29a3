"""What a producer implements, and what the engine tells it.

A producer is the broker's half of a shared stream: it hands events out (`open_batches` or `open_stream`) and is told what
became of them (`advance`). The signatures are those of Airflow 3.3's `airflow.triggers.shared_stream`, so that a producer
written for it runs here with other imports; `capabilities`, `open_batches`, `get_event_id`, `pause` and `resume` are ours,
and optional. Read next: `manager.py` for the other half, the subscribers'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

DEFAULT_SUBSCRIBER_QUEUE_MAX: Final = 1024
"""Events a subscriber may have unpulled before its stream waits for it."""

DEFAULT_ACK_TIMEOUT: Final = 300.0
"""Seconds from pulling an event to having moved past it with all it derived stored."""


class _Unordered:
    """The lane of events that settle one by one, in any order."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNORDERED"

    def __reduce__(self) -> str:
        return "UNORDERED"


UNORDERED: Final = _Unordered()
"""Returned by `get_advance_lane` for an event that may settle in any order (an SQS standard queue, unkeyed Pub/Sub)."""


@dataclass(frozen=True, slots=True)
class LaneLost:
    """Yielded by `open_batches`: the lane was taken away (rebalance, lost session).

    Its events in flight leave without an outcome and without an attempt; the lane may come back later, as a new life.
    """

    lane: Hashable


class Rejection(NamedTuple):
    """One subscriber's refusal of an event. `attempt` counts the times it had the event in hand, from 1."""

    trigger_id: Hashable
    reason: str | None
    attempt: int


class AdvanceOutcome(NamedTuple):
    """How the cohort resolved one event: each member is in exactly one of the three counts."""

    acked: int
    failed: int
    rejected: int = 0
    rejections: tuple[Rejection, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Whether the broker may simply be told "done": none failed, none rejected, and somebody was there."""
        return not self.failed and not self.rejected and self.acked > 0


class AdvanceItem(NamedTuple):
    """One event of an `advance` call: what the producer yielded with it, and what became of it."""

    broker_payload: Any
    outcome: AdvanceOutcome


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a producer promises, so that the engine can rely on it."""

    ordered: bool = False
    """A failed event breaks its lane: what is behind it is handed out again, in order. Concerns every lane but `UNORDERED`."""
    parallel_advances: int = 1
    """`advance` calls the producer bears at once, on different lanes."""
    lease_seconds: float | None = None
    """How long the broker waits for a settlement before it redelivers, when nothing extends it; None: for ever."""
    replayable: bool = False
    """A position can be sought, so what is read again costs no delivery count."""
    counts_deliveries: bool = False
    """`Message.delivery_count` is filled in."""
    byte_size: Callable[[Any, Any], int] | None = None
    """`(raw event, broker payload) -> bytes` in memory. None: length of bytes and str, `byte_size` of a Message, else 1 KiB."""


class SharedStreamProducer(ABC):
    """The broker's half of a shared stream; one instance serves one poll.

    Implement `advance`, and `open_stream` or `open_batches`: each of the two is derived from the other, and the engine calls
    `open_batches` only. Connect when the stream is opened, never in `__init__` or in the factory.
    """

    capabilities: Capabilities = Capabilities()

    def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield `(raw event, broker payload)` for ever, or raise.

        The payload is whatever `advance` needs later (an offset, a receipt handle). Returning is an error. `SourceUnavailable`
        and any other exception end the stream; the runner opens a new producer with backoff.
        """
        return self._events()

    def open_batches(self) -> AsyncIterator[Sequence[tuple[Any, Any]] | LaneLost]:
        """Yield whole poll batches, sequences of `(raw event, broker payload)`, or `LaneLost`; else as `open_stream`."""
        return self._batches()

    async def _events(self) -> AsyncIterator[tuple[Any, Any]]:
        if type(self).open_batches is SharedStreamProducer.open_batches:
            raise NotImplementedError(f"{type(self).__name__} implements neither open_stream nor open_batches")
        async with aclosing(self.open_batches()) as batches:  # type: ignore[type-var]  # an async generator in practice
            async for batch in batches:
                if not isinstance(batch, LaneLost):
                    for pair in batch:
                        yield pair

    async def _batches(self) -> AsyncIterator[Sequence[tuple[Any, Any]]]:
        if type(self).open_stream is SharedStreamProducer.open_stream:
            raise NotImplementedError(f"{type(self).__name__} implements neither open_stream nor open_batches")
        events = self.open_stream()
        try:
            async for pair in events:
                yield (pair,)
        finally:
            if (aclose := getattr(events, "aclose", None)) is not None:
                await aclose()

    @abstractmethod
    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Tell the broker what became of a lane's next events.

        `batch` is not empty, is of one lane, and in fan-out order; a lane's next call waits for this one to return. Must be
        idempotent: after `SourceUnavailable`, or past its deadline (it is cancelled), it is called again with the same items.
        Any other exception ends the stream.

        Where `capabilities.ordered`, the events behind a failed one come in the same call as failed, and when the call
        returns the lane is handed out again from the failed event, in order, and nothing of the old run. An item that
        reaches it later from the old run (its outcome is not clean) is given back to the broker, or ignored.
        """

    def get_advance_lane(self, broker_payload: Any) -> Hashable:
        """Name the event's lane; events of one lane settle in fan-out order. Called once per event, as it is read; never blocks.

        The default is one lane for all. `UNORDERED` events settle in any order.
        """
        return None

    def get_event_id(self, broker_payload: Any) -> str | None:
        """Name the event: the same on every redelivery, different for every event. None (default): the raw event's own `id`
        if it is a `Message`, else there is none and nothing is deduplicated."""
        return None

    def pause(self, lane: Hashable | None = None) -> None:
        """Hand out no more of the lane (None: of any), keeping membership and leases. Optional; called on the producer's loop."""

    def resume(self, lane: Hashable | None = None) -> None:
        """Undo `pause`. Optional; called on the producer's loop."""

    async def aclose(self) -> None:
        """Release what was opened. Called once, when the poll has ended; errors are logged."""


F = TypeVar("F", bound=Callable[..., Any])


def default(method: F) -> F:
    """Mark what a base class defines so that a subclass which overrides it can be told from one that does not."""
    method.is_default = True  # type: ignore[attr-defined]
    return method


class SharedStreamTrigger(Protocol):
    """What the engine needs of a trigger; `headrace.triggers.BaseEventTrigger` has it."""

    def serialize(self) -> tuple[str, dict[str, Any]]: ...

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]: ...

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer: ...

    def shared_stream_match(self) -> Mapping[str, Collection[Any]] | None: ...


@dataclass(frozen=True, slots=True)
class EventInHand:
    """The event a subscriber has pulled and not moved past."""

    event_id: str | None
    """The same on every redelivery; None where the source gives no identity."""
    lane: Hashable
    delivery_count: int | None
    """How often the broker says it handed the event out, from 1; None where it does not count."""
    raw_event: Any
    attempt: int
    """How often this subscriber had it in hand on this delivery, from 1."""
    gated: bool
    """Whether the broker waits for what is derived from it (ack mode)."""
    void: bool
    """Whether it is resolved already (rejected, failed, its lane broken or lost): what is derived from it is dropped."""
