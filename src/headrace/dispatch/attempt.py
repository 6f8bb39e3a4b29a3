"""One try: calls a target and says what becomes of the event."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from headrace.dispatch.targets.base import Target
from headrace.errors import TargetError, TargetRejected
from headrace.store import StoredEvent

MAX_ANSWER_CHARS: Final = 500
"""What is kept of an exception that may be of any length."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of the event, and the answer that is kept with the attempt."""

    outcome: Literal["delivered", "retry", "dead"]
    answer: str = ""
    retry_after: float | None = None
    error: Exception | None = None
    """What the target raised and is not its to raise: a bug, worth a traceback in the log."""


async def attempt(target: Target, event: StoredEvent, now: float) -> Verdict:
    """Call the target, within its limits. `now` is in epoch seconds. Raises nothing but `CancelledError`."""
    if refused := _refusal(target, event, now):
        return refused
    verdict = await _call(target, event)
    if verdict.outcome == "retry" and event.attempt >= target.config.max_attempts:
        return Verdict("dead", f"attempt {event.attempt} was the last: {verdict.answer}", error=verdict.error)
    return verdict


def _refusal(target: Target, event: StoredEvent, now: float) -> Verdict | None:
    """Why the event is not sent at all."""
    config = target.config
    if event.attempt > config.max_attempts:
        # Claims count, so an event that kills its process each time ends here instead of killing for ever.
        return Verdict("dead", f"taken up {event.attempt - 1} times without an answer: whoever took it up died or hung")
    if not event.has_payload:
        return Verdict("dead", "its payload has been deleted by retention")
    age = now - (event.published_at if event.published_at is not None else event.stored_at)
    if config.max_age is not None and event.attempt == 1 and age > config.max_age:
        return Verdict("dead", f"it was {age:.0f} s old when it was taken up; max_age is {config.max_age:g} s")
    return None


async def _call(target: Target, event: StoredEvent) -> Verdict:
    timeout = asyncio.timeout(target.config.timeout)
    try:
        async with timeout:
            return Verdict("delivered", await target.deliver(event) or "")
    except TargetRejected as error:
        return Verdict("dead", str(error))
    except TargetError as error:
        return Verdict("retry", str(error), error.retry_after)
    except TimeoutError as error:
        if timeout.expired():
            return Verdict("retry", f"no answer within {target.config.timeout:g} s")
        return Verdict("retry", _described(error), error=error)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Verdict("retry", "the call cancelled itself", error=RuntimeError(*error.args))  # nobody has cancelled us
    except Exception as error:
        return Verdict("retry", _described(error), error=error)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_ANSWER_CHARS]
