"""What a log line looks like, and what is never in it."""

import contextvars
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from headrace.app.logs import configure_logs
from headrace.runner.identity import ask_identity


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_structlog_and_logging_come_out_as_one_json_line_each(lines: io.StringIO) -> None:
    """Whoever logs by whichever library: a line with time, level, logger and event."""
    configure_logs(stream=lines)
    structlog.stdlib.get_logger("headrace.x").info("did it", stream="orders", count=3)
    logging.getLogger("headrace.y").warning("%s: late by %d s", "orders", 4)
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert first["timestamp"].endswith("Z")
    assert {key: first[key] for key in ("event", "level", "logger", "stream", "count")} == {
        "event": "did it",
        "level": "info",
        "logger": "headrace.x",
        "stream": "orders",
        "count": 3,
    }
    assert (second["event"], second["level"], second["logger"]) == ("orders: late by 4 s", "warning", "headrace.y")


def test_an_exception_is_in_its_line(lines: io.StringIO) -> None:
    """The traceback is a field, not lines of its own."""
    configure_logs(stream=lines)
    try:
        raise ValueError("half")
    except ValueError:
        logging.getLogger("headrace.y").exception("failed")
    (line,) = map(json.loads, lines.getvalue().splitlines())
    assert line["exception"].endswith("ValueError: half")


def test_the_identity_of_a_delivery_is_on_every_line(lines: io.StringIO) -> None:
    """What context variables hold is added, to lines of the standard library too."""
    configure_logs(stream=lines)
    with structlog.contextvars.bound_contextvars(trigger="audit", event_id="audit:1:0"):
        logging.getLogger("headrace.y").info("inside")
    logging.getLogger("headrace.y").info("outside")
    inside, outside = map(json.loads, lines.getvalue().splitlines())
    assert (inside["trigger"], inside["event_id"]) == ("audit", "audit:1:0")
    assert "trigger" not in outside


def test_what_a_trigger_logs_has_its_trigger_and_message(lines: io.StringIO) -> None:
    """The run that its code belongs to is asked when the line is written."""
    configure_logs(stream=lines)
    in_hand = {"trigger": "audit", "message": "1"}

    def filter_code() -> None:
        ask_identity.set(lambda: in_hand)
        logging.getLogger("shop").info("first")
        in_hand["message"] = "2"
        structlog.stdlib.get_logger("shop").info("second", trigger="said itself")

    contextvars.copy_context().run(filter_code)
    logging.getLogger("shop").info("outside")
    first, second, outside = map(json.loads, lines.getvalue().splitlines())
    assert (first["trigger"], first["message"]) == ("audit", "1")
    assert (second["trigger"], second["message"]) == ("said itself", "2")
    assert "trigger" not in outside


def test_payloads_are_in_no_line_unless_asked_for(lines: io.StringIO) -> None:
    """A payload given by mistake is dropped; `log_payloads` shows it."""
    configure_logs(stream=lines)
    structlog.stdlib.get_logger("x").info("event", payload={"card": "4111"}, value=b"4111")
    assert "4111" not in lines.getvalue()
    configure_logs(stream=lines, log_payloads=True)
    structlog.stdlib.get_logger("x").info("event", payload={"card": "4111"})
    assert "4111" in lines.getvalue()


def test_what_json_cannot_hold_does_not_break_a_line(lines: io.StringIO) -> None:
    """Objects are written by their repr."""
    configure_logs(stream=lines)
    structlog.stdlib.get_logger("x").info("event", key=("orders", 0), error=ValueError("x"), table={1: object})
    (line,) = map(json.loads, lines.getvalue().splitlines())
    assert (line["key"], line["error"]) == (["orders", 0], "ValueError('x')")
