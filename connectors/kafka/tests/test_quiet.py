"""The log of aiokafka while a broker is away."""

from __future__ import annotations

import logging

from headrace_kafka.quiet import NOISY, Repeats, quieten


def test_a_line_passes_once_in_a_while_and_counts_the_others() -> None:
    """Lines of one kind pass once in 30 s, with their own values; others are not held up; what was left out is told."""
    now = [0.0]
    repeats = Repeats(30.0, clock=lambda: now[0])
    said: list[str] = []

    def log(text: str, *values: object) -> None:
        record = logging.LogRecord("aiokafka", logging.ERROR, "", 0, text, values, None)
        if repeats.filter(record):
            said.append(record.getMessage())

    for number in range(100):
        now[0] = number * 0.5
        log("Unable to connect to %s", number)
        if number == 10:
            log("something else")
    assert said == ["Unable to connect to 0", "something else", "Unable to connect to 60 (59 more like it since the last)"]


def test_aiokafka_is_quietened_once() -> None:
    """Each of its loggers has one filter, however often a stream is opened."""
    for _ in range(2):
        quieten()
    assert [len([one for one in logging.getLogger(name).filters if isinstance(one, Repeats)]) for name in NOISY] == [1] * len(
        NOISY
    )
