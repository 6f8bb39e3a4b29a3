"""Prometheus metrics: counted as things happen, or read when they are scraped.

`Metrics` is the observer of the runner and of the dispatcher. Labels are streams, connectors, trigger classes and kinds of
targets: never a trigger's, event's or message's id, whose number has no bound. Durations are seconds, sizes bytes.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from headrace.dispatch.observer import DispatchObserver, Outcome
from headrace.errors import AckTimeout, SubscriberOverflow
from headrace.runner import Observer, RunnerStatus
from headrace.store import Backlog, Cause, GroupReport, Unit
from headrace.streams.contract import AdvanceItem, AdvanceOutcome

_FAST: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SLOW: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0)
_SIZES: Final = (1, 3, 10, 30, 100, 300, 1000)
_STREAM: Final = ("stream", "connector")
OWN: Final = "own"
"""The connector of a stream that a trigger class opens by itself."""


class Metrics(Observer, DispatchObserver):
    """All metrics of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._connectors: Mapping[str, str] = {}
        self._classes: Mapping[str, str] = {}

        def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"headrace_{name}", help, labels, registry=registry)

        def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"headrace_{name}", help, labels, registry=registry)

        def histogram(name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = _FAST) -> Histogram:
            return Histogram(f"headrace_{name}", help, labels, buckets=buckets, registry=registry)

        Info("headrace_build", "What is running.", registry=registry).info({"version": version("headrace")})
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        self._read = counter("events_read", "Events read from the broker and fanned out.", _STREAM)
        self._read_bytes = counter("events_read_bytes", "Their bytes.", _STREAM)
        self._verdicts = counter("events", "Events settled with the broker, by verdict.", (*_STREAM, "verdict"))
        self._advance = histogram("advance_duration_seconds", "How long the broker took to settle a batch.", _STREAM)
        self._advance_failures = counter("advance_failures", "Settlements that raised or were late.", _STREAM)
        self._stream_restarts = counter("stream_restarts", "Streams that ended and were opened again.", _STREAM)
        self._subscriber_failures = counter(
            "subscriber_failures", "Triggers that were failed by their stream.", (*_STREAM, "reason")
        )
        self._in_flight = gauge("in_flight_events", "Events read and not settled.", _STREAM)
        self._in_flight_bytes = gauge("in_flight_bytes", "Their bytes, with those of events that are not stored yet.", _STREAM)
        self._oldest_age = gauge("oldest_in_flight_age_seconds", "Age of the oldest event in flight.", _STREAM)
        self._subscribers = gauge("subscribers", "Triggers that are on the stream.", _STREAM)
        self._missing = gauge("missing_subscribers", "Triggers that belong to the stream and are not on it.", _STREAM)
        self._stuck = gauge("stream_stuck", "1 while the stream does not poll although it should.", _STREAM)
        self._lag = gauge("lag_events", "Events in the broker that are not settled, where the connector tells.", _STREAM)
        self._triggers = gauge("triggers", "Triggers by what they do.", ("class", "phase"))
        self._group_units = histogram("store_group_units", "Units (deliveries) in one group commit.", buckets=_SIZES)
        self._group_seconds = histogram("store_group_duration_seconds", "How long a group commit took.")
        self._stored_units = counter("store_units", "Units that were new to the store.")
        self._stored_events = counter("store_events", "Derived events that were new to the store.")
        self._stored_bytes = counter("store_bytes", "Bytes of what was stored.")
        self._store_failures = counter("store_failures", "Times the store went away.")
        self._store_available = gauge("store_available", "1 while the store answers.")
        self._store_available.set(1)
        self._to_stored = histogram(
            "published_to_stored_seconds", "From a message's publication to its unit being stored.", _STREAM, _SLOW
        )
        self._dead_letters = counter("dead_letters", "Messages given up for one trigger.", (*_STREAM, "cause"))
        self._attempts_failed = counter("trigger_attempts_failed", "Times a trigger failed on a message.", ("class",))
        self._trigger_restarts = counter("trigger_restarts", "Times a trigger was run again after an error.", ("class",))
        self._loop_blocked = counter("loop_blocked_seconds", "Seconds in which the event loop stood still.", ("class",))
        self._attempts = counter("dispatch_attempts", "Calls of targets, by outcome.", ("target", "outcome"))
        self._attempt_seconds = histogram("dispatch_duration_seconds", "How long a call of a target took.", ("target",))
        self._released = counter("dispatch_released", "Claims that were given back untried, or broken off, at a stop.")
        self._untargeted = gauge("dispatch_untargeted_triggers", "Triggers whose events wait and that have no target.")
        self._calls = gauge("dispatch_calls", "Calls of targets that are under way.")
        self._outbox = gauge("outbox_events", "Stored events that are not delivered, by state.", ("state",))
        self._outbox_age = gauge("outbox_oldest_pending_age_seconds", "Age of the oldest event that waits for its target.")

        # Looked up for every event, so not each time anew.
        self._to_stored_of = cache(self._to_stored.labels)
        self._attempts_of = cache(self._attempts.labels)
        self._attempt_seconds_of = cache(self._attempt_seconds.labels)

    def describe(self, *, connectors: Mapping[str, str], classes: Mapping[str, str]) -> None:
        """Say the connector of each stream and the class of each trigger; again after a reload."""
        self._connectors, self._classes = connectors, classes

    def set_backlog(self, backlog: Backlog) -> None:
        """What waits in the outbox, as of now."""
        for state in ("pending", "dispatching", "deferred", "dead"):
            self._outbox.labels(state).set(getattr(backlog, state))
        self._outbox_age.set(backlog.oldest_pending_age or 0.0)

    def set_calls(self, calls: int) -> None:
        """How many calls of targets are under way."""
        self._calls.set(calls)

    def set_status(self, status: RunnerStatus) -> None:
        """What streams hold and triggers do, as of now."""
        gauges = (
            self._in_flight,
            self._in_flight_bytes,
            self._oldest_age,
            self._subscribers,
            self._missing,
            self._stuck,
            self._lag,
        )
        for each in (*gauges, self._triggers):
            each.clear()
        for stream in status.streams.values():
            labels = self.stream_labels(stream.name)
            values = (
                stream.in_flight,
                stream.in_flight_bytes,
                stream.oldest_age or 0.0,
                stream.subscribers,
                len(stream.missing),
                stream.is_stuck,
                _lag(stream.source),
            )
            for each, value in zip(gauges, values, strict=True):
                if value is not None:
                    each.labels(*labels).inc(value)  # added up where streams share labels
        for trigger in status.triggers.values():
            self._triggers.labels(trigger.class_path, trigger.phase.value).inc()

    def stream_labels(self, key: Hashable) -> tuple[str, str]:
        """The labels of a stream; those that trigger classes open by themselves are counted together."""
        connector = self._connectors.get(key) if isinstance(key, str) else None
        return (str(key), connector) if connector is not None else (OWN, OWN)

    def class_label(self, trigger_id: str | None) -> str:
        return self._classes.get(trigger_id or "", "unknown")

    # Of the engine.

    def on_read(self, key: Hashable, events: int, size: int) -> None:
        labels = self.stream_labels(key)
        self._read.labels(*labels).inc(events)
        self._read_bytes.labels(*labels).inc(max(size, 0))

    def on_advanced(self, key: Hashable, items: Sequence[AdvanceItem], seconds: float) -> None:
        labels = self.stream_labels(key)
        self._advance.labels(*labels).observe(seconds)
        for verdict, count in Tally(map(verdict_of, [item.outcome for item in items])).items():
            self._verdicts.labels(*labels, verdict).inc(count)

    def on_advance_failed(self, key: Hashable, error: Exception) -> None:
        self._advance_failures.labels(*self.stream_labels(key)).inc()

    def on_subscriber_failed(self, key: Hashable, trigger_id: Hashable, error: Exception) -> None:
        reason = "timeout" if isinstance(error, AckTimeout) else "overflow" if isinstance(error, SubscriberOverflow) else "ended"
        self._subscriber_failures.labels(*self.stream_labels(key), reason).inc()

    # Of the store.

    def on_stored(self, units: Sequence[Unit]) -> None:
        now = time.time()
        for unit in units:
            if unit.published_at is not None:
                self._to_stored_of(*self.stream_labels(unit.stream)).observe(max(now - unit.published_at, 0.0))

    def on_group(self, report: GroupReport) -> None:
        self._group_units.observe(report.units)
        self._group_seconds.observe(report.seconds)
        self._stored_units.inc(report.new_units)
        self._stored_events.inc(report.new_events)
        self._stored_bytes.inc(report.bytes)

    def on_store_available(self, available: bool) -> None:
        self._store_available.set(available)
        if not available:
            self._store_failures.inc()

    def on_dead_letter(self, trigger_id: str, stream: str | None, cause: Cause) -> None:
        self._dead_letters.labels(*self.stream_labels(stream), cause).inc()

    # Of the runner.

    def on_attempt_failed(self, trigger_id: str, attempt: int) -> None:
        self._attempts_failed.labels(self.class_label(trigger_id)).inc()

    def on_trigger_restart(self, trigger_id: str, error: BaseException) -> None:
        self._trigger_restarts.labels(self.class_label(trigger_id)).inc()

    def on_stream_restart(self, stream: str, error: BaseException) -> None:
        self._stream_restarts.labels(*self.stream_labels(stream)).inc()

    def on_loop_blocked(self, trigger_id: str | None, seconds: float) -> None:
        self._loop_blocked.labels(self.class_label(trigger_id)).inc(seconds)

    # Of the dispatcher.

    def attempted(self, trigger_id: str, kind: str, outcome: Outcome, seconds: float) -> None:
        self._attempts_of(kind, outcome).inc()
        self._attempt_seconds_of(kind).observe(seconds)

    def released(self, count: int) -> None:
        self._released.inc(count)

    def untargeted(self, trigger_ids: Collection[str]) -> None:
        self._untargeted.set(len(trigger_ids))


def _lag(source: Mapping[str, Any]) -> float | None:
    """The lag that a producer's `stats()` tells: a number, or one for each lane."""
    lag = source.get("lag")
    if isinstance(lag, Mapping):
        return float(sum(lag.values()))
    return float(lag) if isinstance(lag, (int, float)) else None


def verdict_of(outcome: AdvanceOutcome) -> str:
    """What the broker was told of an event: any failure keeps it for redelivery, else any rejection makes it a dead letter."""
    if outcome.failed:
        return "failed"
    if outcome.rejected:
        return "rejected"
    return "acked" if outcome.acked else "unseen"
