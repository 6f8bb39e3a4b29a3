"""The base classes of triggers, with the signatures of Airflow 3.3's `airflow.triggers.base`.

A trigger is either a filter on a shared stream (`BaseEventTrigger.filter_shared_stream`) or runs by itself (`run`). It is
stored as what `serialize` gives and built again from it, in another process perhaps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Hashable, Mapping
from typing import Any

from headrace.streams.contract import SharedStreamProducer, default


class TriggerEvent:
    """What a trigger fires: a JSON payload, and optionally a key that makes it unique for its trigger."""

    __slots__ = ("dedupe_key", "payload")

    def __init__(self, payload: Any, dedupe_key: str | None = None) -> None:
        self.payload = payload
        self.dedupe_key = dedupe_key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TriggerEvent):
            return NotImplemented
        return self.payload == other.payload and self.dedupe_key == other.dedupe_key

    __hash__ = None  # type: ignore[assignment]  # payloads are mutable

    def __repr__(self) -> str:
        return f"TriggerEvent<{self.payload!r}>"


class BaseTrigger(ABC):
    """A piece of waiting: built from keyword arguments, run by Headrace, stored as (import path, keyword arguments)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path of the class and the keyword arguments that build an equal trigger."""

    @abstractmethod
    def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield events until finished (an async generator). One that returns after an event is finished for good."""

    async def cleanup(self) -> None:
        """Release what this instance holds. Called on every exit; errors are logged."""

    async def on_kill(self) -> None:
        """End what this trigger watches. Called only when a user removes the trigger, never at a restart or shutdown."""

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__}>"  # never its kwargs: they may hold secrets


class BaseEventTrigger(BaseTrigger):
    """A trigger that may share a stream: triggers with equal keys share one poll, each with a filter of its own.

    Override `create_shared_stream_producer` for ack mode, or `open_shared_stream` for unacknowledged mode; the filter sees
    the same raw events in both.
    """

    def shared_stream_key(self) -> Hashable | None:
        """What is shared: derived from configuration, never from the moment. None: this trigger runs by `run`."""
        return None

    @classmethod
    def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        """Yield raw events for ever, or raise: an unacknowledged source. `kwargs` are the first subscriber's."""
        raise NotImplementedError(f"{cls.__name__} has a shared_stream_key but no open_shared_stream")

    @classmethod
    @default
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Build the producer of one poll, without connecting. Overriding this is what switches ack mode on."""
        raise NotImplementedError(f"{cls.__name__} does not implement create_shared_stream_producer")

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Turn raw events into this trigger's own (an async generator).

        Yield what an event derives before asking for the next one: whatever is yielded belongs to the event last pulled, so
        a filter that pulls ahead binds to the wrong event. `reject_shared_stream_event` refuses the event in hand. The same
        event may come again: derive the same from it each time, or only the first derivation is kept. A filter that returns
        has ended for good.
        """
        raise NotImplementedError(f"{type(self).__name__} has a shared_stream_key but no filter_shared_stream")

    def shared_stream_match(self) -> Mapping[str, Collection[Any]] | None:
        """Declare what an event must have for the filter to want it: `{dotted field: values, one of which it has}`, all of the
        fields. Events that lack it are moved past unseen. None: every event is offered. An unreadable event is always offered."""
        return None

    def run(self) -> AsyncIterator[TriggerEvent]:
        raise NotImplementedError(f"{type(self).__name__} watches a shared stream and has no run()")
