"""Helpers that must not die unseen, and lines in the log without what user code put into an exception."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.runner.keeping import keep_running, whereabouts
from headrace.testing.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_helper_that_fails_is_named_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    """A lease keeper that dies unseen would let two replicas run one trigger."""
    starts: list[float] = []

    async def work() -> None:
        starts.append(asyncio.get_running_loop().time())
        if len(starts) < 3:
            raise ValueError("unforeseen")
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running("leases", work))
    await asyncio.sleep(10)
    assert starts == [0, 1, 2]
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL] * 2
    assert "leases failed" in caplog.text
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_whereabouts_tell_the_type_and_the_line_and_nothing_of_the_text() -> None:
    """What a filter raises may hold a payload: its text belongs into the dead letter, not into the log."""
    try:
        raise KeyError("card number 4711")
    except KeyError as error:
        told = whereabouts(error)
    assert told.startswith("KeyError at ")
    assert "test_keeping.py:" in told
    assert "4711" not in told
