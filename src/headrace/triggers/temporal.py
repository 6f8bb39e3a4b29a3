"""Triggers that wait for a moment: `DateTimeTrigger` for one that is given, `TimeDeltaTrigger` for one a while from now.

They run by themselves, fire once and are finished. The event's payload is `{"moment": "2026-11-30T08:00:00+00:00"}`, always in
UTC, and the moment is its `dedupe_key` too, so that a run that is taken over by another runner fires no second time. A moment
that has passed fires at once.

They go by the wall clock, as the moment does, and never sleep for longer than `LONGEST_SLEEP` before they look at it again: it
may be set, and a machine may be suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace.triggers.base import BaseTrigger, TriggerEvent

LONGEST_SLEEP: Final = 60.0
"""Seconds after which a changed clock is noticed."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """What a temporal trigger waits by: the wall clock, as an aware datetime, and how to sleep for some seconds."""

    now: Callable[[], datetime] = _utc_now
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class DateTimeTrigger(BaseTrigger):
    """Fires at a moment.

    Give `moment` or `target_time` (Airflow's two names for it), an aware datetime or an ISO 8601 string with an offset.
    `end_from_trigger` is Airflow's too: there it ends the waiting task; here is none, so it is kept and changes nothing.
    Raises `TypeError` unless exactly one is given, `ValueError` for one without a time zone.
    """

    def __init__(
        self,
        moment: datetime | str | None = None,
        *,
        target_time: datetime | str | None = None,
        end_from_trigger: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        if moment is not None and target_time is not None:
            raise TypeError("give moment or target_time, not both")
        self.moment = _aware(moment if moment is not None else target_time)
        self.end_from_trigger = end_from_trigger
        self._clock = clock or Clock()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {"moment": self.moment, "end_from_trigger": self.end_from_trigger}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while (remaining := (self.moment - self._clock.now()).total_seconds()) > 0:
            await self._clock.sleep(min(remaining, LONGEST_SLEEP))
        moment = self.moment.isoformat()
        yield TriggerEvent({"moment": moment}, dedupe_key=moment)


class TimeDeltaTrigger(DateTimeTrigger):
    """Fires once `delta` has passed since it was made: a timedelta, or seconds.

    The moment is fixed when it is made and is what it serializes to: built again after a restart, from `moment` instead of
    `delta`, it waits for what remains.
    """

    def __init__(
        self,
        delta: timedelta | float | None = None,
        *,
        moment: datetime | str | None = None,
        end_from_trigger: bool = False,
        clock: Clock | None = None,
    ) -> None:
        if (delta is None) == (moment is None):
            raise TypeError("give delta, or the moment that an earlier one was for")
        if delta is not None:
            moment = (clock or Clock()).now() + _duration(delta)
        super().__init__(moment, end_from_trigger=end_from_trigger, clock=clock)


def _aware(moment: datetime | str | None) -> datetime:
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(f"expected a time such as '2026-11-30T08:00:00+01:00', found {moment!r}") from None
    if not isinstance(moment, datetime):
        raise TypeError(f"expected a datetime or an ISO 8601 string, found {type(moment).__name__}")
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat(' ')} has no time zone: add an offset such as +00:00")
    return moment.astimezone(UTC)


def _duration(delta: timedelta | float) -> timedelta:
    if isinstance(delta, timedelta):
        return delta
    if isinstance(delta, bool) or not isinstance(delta, (int, float)):
        raise TypeError(f"expected a timedelta or seconds, found {type(delta).__name__}")
    return timedelta(seconds=delta)
