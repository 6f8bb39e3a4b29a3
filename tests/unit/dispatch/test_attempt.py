"""One try: what a target does, and what becomes of the event."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.dispatch.attempt import Verdict, attempt
from headrace.errors import TargetError, TargetRejected
from headrace.testing.virtual_time import in_virtual_time


async def answer(error: BaseException | None = None, text: str | None = None) -> str | None:
    if error is not None:
        raise error
    return text


@pytest.mark.parametrize(
    ("error", "outcome", "said", "retry_after"),
    [
        (None, "delivered", "ok", None),
        (TargetError("busy", retry_after=7), "retry", "busy", 7),
        (TargetRejected("no such order"), "dead", "no such order", None),
        (ValueError("a bug"), "retry", "ValueError: a bug", None),
        (TimeoutError("the target's own"), "retry", "TimeoutError: the target's own", None),
        (asyncio.CancelledError(), "retry", "the call cancelled itself", None),
        (ExceptionGroup("several", [ValueError("a")]), "retry", "ExceptionGroup: several (1 sub-exception)", None),
    ],
)
async def test_every_end_of_a_call_has_a_verdict(
    event: Any, fake_target: Any, error: BaseException | None, outcome: str, said: str, retry_after: float | None
) -> None:
    """Whatever the target does, the event's fate is one of three, with the answer kept. What is no verdict of the target's own
    keeps its exception for the log."""
    verdict = await attempt(fake_target(lambda event: answer(error, "ok")), event(), 0.0)
    assert (verdict.outcome, verdict.answer, verdict.retry_after) == (outcome, said, retry_after)
    assert (verdict.error is None) == (error is None or isinstance(error, TargetError))


@in_virtual_time
async def test_a_call_past_its_timeout_is_cancelled_and_tried_again(event: Any, fake_target: Any) -> None:
    """The target has `timeout` seconds, by the loop's clock."""
    target = fake_target(lambda event: asyncio.sleep(100), timeout=7)
    verdict = await attempt(target, event(), 0.0)
    assert verdict == Verdict("retry", "no answer within 7 s")
    assert (target.cancelled, asyncio.get_running_loop().time()) == (1, 7)


async def test_a_cancelled_call_is_a_cancellation(event: Any, fake_target: Any) -> None:
    """Cancelling the try from outside is no verdict."""
    task = asyncio.create_task(attempt(fake_target(lambda event: asyncio.sleep(100)), event(), 0.0))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(("number", "outcome"), [(2, "retry"), (3, "dead")])
async def test_the_last_attempt_is_final(event: Any, fake_target: Any, number: int, outcome: str) -> None:
    """A failure is tried again until `max_attempts` is reached."""
    verdict = await attempt(fake_target(lambda event: answer(TargetError("no")), max_attempts=3), event(attempt=number), 0.0)
    assert verdict.outcome == outcome


@pytest.mark.parametrize(
    ("changes", "now", "sent"),
    [
        ({"stored_at": 100.0}, 110.0, True),
        ({"stored_at": 100.0}, 111.0, False),
        ({"stored_at": 1000.0, "published_at": 100.0}, 1000.0, False),
        ({"stored_at": 100.0, "published_at": 1000.0}, 1000.0, True),
        ({"stored_at": 100.0, "attempt": 2}, 1000.0, True),
    ],
)
async def test_x17_an_event_that_is_too_old_when_it_is_first_taken_up_is_dead(
    event: Any, fake_target: Any, changes: dict[str, Any], now: float, sent: bool
) -> None:
    """X17: age counts from the message's own time (an offset reset brings old messages as new events), else from when it was
    stored; a target that was down does not make an event too old once it has been tried."""
    target = fake_target(max_age=10)
    verdict = await attempt(target, event(**changes), now)
    assert (verdict.outcome, len(target.calls)) == (("delivered", 1) if sent else ("dead", 0))
    assert sent or "max_age is 10 s" in verdict.answer


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"attempt": 21}, "20 times without an answer"), ({"payload": None, "has_payload": False}, "retention")],
)
async def test_what_cannot_be_sent_is_dead_unsent(event: Any, fake_target: Any, changes: dict[str, Any], reason: str) -> None:
    """Claims that all ran out, or a payload that is gone: dead, with the reason, and no call."""
    target = fake_target()
    verdict = await attempt(target, event(**changes), 0.0)
    assert verdict.outcome == "dead"
    assert reason in verdict.answer
    assert target.calls == []


async def test_a_long_exception_is_cut(event: Any, fake_target: Any) -> None:
    """A handler's exception may hold a whole document; the answer does not."""
    verdict = await attempt(fake_target(lambda event: answer(ValueError("x" * 10_000))), event(), 0.0)
    assert len(verdict.answer) == 500
