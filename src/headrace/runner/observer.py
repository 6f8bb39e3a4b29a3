"""What the runner tells those who count: metrics implement the methods they need, and no more."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from headrace.store import Cause, GroupReport, Unit
from headrace.streams.contract import AdvanceItem


class Observer:
    """Called on the event loop, synchronously; must neither wait nor raise. Seconds and bytes. `key` is a stream's name."""

    # Of the engine.

    def on_read(self, key: Hashable, events: int, size: int) -> None:
        """A batch was fanned out to its cohort."""

    def on_advanced(self, key: Hashable, items: Sequence[AdvanceItem], seconds: float) -> None:
        """An `advance` call returned."""

    def on_advance_failed(self, key: Hashable, error: Exception) -> None:
        """An `advance` call raised or was late."""

    def on_subscriber_failed(self, key: Hashable, trigger_id: Hashable, error: Exception) -> None:
        """A trigger was failed by its stream: it timed out or overflowed."""

    # Of the store.

    def on_stored(self, units: Sequence[Unit]) -> None:
        """Units are in the store, now or since before: there may be something to dispatch."""

    def on_group(self, report: GroupReport) -> None:
        """A group was committed."""

    def on_store_available(self, available: bool) -> None:
        """The store went away, or is back."""

    def on_dead_letter(self, trigger_id: str, stream: str | None, cause: Cause) -> None:
        """A message was given up for one trigger."""

    # Of the runner.

    def on_attempt_failed(self, trigger_id: str, attempt: int) -> None:
        """A trigger raised, or timed out, on an event that it had in hand."""

    def on_trigger_restart(self, trigger_id: str, error: BaseException) -> None:
        """A trigger is run again after this error."""

    def on_stream_restart(self, stream: str, error: BaseException) -> None:
        """A stream ended with this error; it is opened again."""

    def on_loop_blocked(self, trigger_id: str | None, seconds: float) -> None:
        """The event loop stood still, in this trigger's code where it is known."""
