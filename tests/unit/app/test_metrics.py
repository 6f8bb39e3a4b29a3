"""What is counted, and under which labels."""

import time

import pytest
from prometheus_client import generate_latest

from headrace.app.metrics import Metrics, verdict_of
from headrace.errors import AckTimeout, SourceUnavailable, SubscriberOverflow
from headrace.store import Backlog, GroupReport, Unit
from headrace.streams.contract import AdvanceItem, AdvanceOutcome

ORDERS = {"stream": "orders", "connector": "kafka"}


@pytest.fixture
def metrics() -> Metrics:
    metrics = Metrics()
    metrics.describe(connectors={"orders": "kafka"}, classes={"audit-17": "shop.Audit"})
    return metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"headrace_{name}", labels)


def test_streams_are_counted_by_stream_and_connector(metrics: Metrics) -> None:
    """Read, settled by verdict, failed settlements and failed triggers."""
    metrics.on_read("orders", 10, 1000)
    outcomes = [AdvanceOutcome(2, 0), AdvanceOutcome(2, 0), AdvanceOutcome(1, 1), AdvanceOutcome(1, 0, 1), AdvanceOutcome(0, 0)]
    metrics.on_advanced("orders", [AdvanceItem(None, outcome) for outcome in outcomes], 0.2)
    metrics.on_advance_failed("orders", SourceUnavailable("away"))
    metrics.on_subscriber_failed("orders", "audit-17", AckTimeout("late"))
    metrics.on_subscriber_failed("orders", "audit-17", SubscriberOverflow("full"))
    metrics.on_stream_restart("orders", SourceUnavailable("away"))
    assert value(metrics, "events_read_total", **ORDERS) == 10
    assert value(metrics, "events_read_bytes_total", **ORDERS) == 1000
    verdicts = {verdict: value(metrics, "events_total", verdict=verdict, **ORDERS) for verdict in ("acked", "failed", "rejected")}
    assert verdicts == {"acked": 2, "failed": 1, "rejected": 1}
    assert value(metrics, "advance_duration_seconds_count", **ORDERS) == 1
    assert value(metrics, "advance_failures_total", **ORDERS) == 1
    assert value(metrics, "subscriber_failures_total", reason="timeout", **ORDERS) == 1
    assert value(metrics, "subscriber_failures_total", reason="overflow", **ORDERS) == 1
    assert value(metrics, "stream_restarts_total", **ORDERS) == 1


def test_the_store_is_counted_by_group(metrics: Metrics) -> None:
    """Sizes, durations, failures, and how long a message was under way."""
    metrics.on_group(GroupReport(units=100, new_units=90, new_events=95, bytes=5000, seconds=0.01))
    metrics.on_store_available(False)
    metrics.on_stored([Unit("audit-17", "orders", "1", published_at=time.time() - 2.0), Unit("audit-17", None, None)])
    metrics.on_dead_letter("audit-17", "orders", "rejected")
    assert value(metrics, "store_group_units_sum") == 100
    assert value(metrics, "store_units_total") == 90
    assert value(metrics, "store_events_total") == 95
    assert (value(metrics, "store_available"), value(metrics, "store_failures_total")) == (0, 1)
    assert value(metrics, "published_to_stored_seconds_count", **ORDERS) == 1
    assert value(metrics, "published_to_stored_seconds_sum", **ORDERS) == pytest.approx(2.0, abs=0.5)
    assert value(metrics, "dead_letters_total", cause="rejected", **ORDERS) == 1
    metrics.on_store_available(True)
    assert value(metrics, "store_available") == 1


def test_triggers_are_counted_by_class_never_by_id(metrics: Metrics) -> None:
    """The number of classes is bounded, the number of triggers is not."""
    metrics.on_attempt_failed("audit-17", 1)
    metrics.on_trigger_restart("audit-17", ValueError())
    metrics.on_loop_blocked("audit-17", 40.0)
    metrics.on_loop_blocked(None, 1.0)
    assert value(metrics, "trigger_attempts_failed_total", **{"class": "shop.Audit"}) == 1
    assert value(metrics, "trigger_restarts_total", **{"class": "shop.Audit"}) == 1
    assert value(metrics, "loop_blocked_seconds_total", **{"class": "shop.Audit"}) == 40
    assert value(metrics, "loop_blocked_seconds_total", **{"class": "unknown"}) == 1
    assert b"audit-17" not in generate_latest(metrics.registry)


def test_streams_that_trigger_classes_open_are_counted_together(metrics: Metrics) -> None:
    """Their keys may hold anything, secrets too."""
    metrics.on_read(("sqs", "https://secret@queue"), 1, 1)
    assert value(metrics, "events_read_total", stream="own", connector="own") == 1
    assert b"secret" not in generate_latest(metrics.registry)


def test_dispatch_is_counted_by_target_and_outcome(metrics: Metrics) -> None:
    """And what waits, by state."""
    metrics.attempted("audit-17", "webhook", "delivered", 0.1)
    metrics.attempted("audit-17", "webhook", "retry", 0.1)
    metrics.released(2)
    metrics.untargeted({"a", "b"})
    metrics.set_backlog(Backlog(pending=3, dispatching=2, deferred=0, dead=1, oldest_pending_age=9.5))
    assert value(metrics, "dispatch_attempts_total", target="webhook", outcome="delivered") == 1
    assert value(metrics, "dispatch_duration_seconds_count", target="webhook") == 2
    assert value(metrics, "dispatch_released_total") == 2
    assert value(metrics, "dispatch_untargeted_triggers") == 2
    assert value(metrics, "outbox_events", state="pending") == 3
    assert value(metrics, "outbox_oldest_pending_age_seconds") == 9.5


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (AdvanceOutcome(5, 0, 0), "acked"),
        (AdvanceOutcome(5, 1, 0), "failed"),
        (AdvanceOutcome(5, 1, 1), "failed"),
        (AdvanceOutcome(5, 0, 1), "rejected"),
        (AdvanceOutcome(0, 0, 0), "unseen"),
    ],
)
def test_x5_a_failure_goes_before_a_rejection(outcome: AdvanceOutcome, verdict: str) -> None:
    """X5: the design's precedence."""
    assert verdict_of(outcome) == verdict
