"""Triggers that wait for a moment, on a clock of the test's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace.testing.virtual_time import in_virtual_time
from headrace.triggers import DateTimeTrigger, TimeDeltaTrigger, TriggerEvent, check_round_trip, load_trigger
from headrace.triggers.temporal import LONGEST_SLEEP, Clock

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


class HandClock:
    """A wall clock that passes while somebody sleeps, and can be set: `jumps` are added, one after each sleep."""

    def __init__(self, now: datetime = NOON, jumps: list[timedelta] | None = None) -> None:
        self.time = now
        self.sleeps: list[float] = []
        self._jumps = list(jumps or [])
        self.clock = Clock(now=lambda: self.time, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += timedelta(seconds=seconds) + (self._jumps.pop(0) if self._jumps else timedelta())


async def run(trigger: DateTimeTrigger) -> list[TriggerEvent]:
    return [event async for event in trigger.run()]


async def test_fires_once_at_its_moment() -> None:
    """One event, not before the moment, with the moment as payload and dedupe key; then it is finished."""
    hand = HandClock()
    events = await run(DateTimeTrigger(NOON + timedelta(seconds=90), clock=hand.clock))
    assert events == [TriggerEvent({"moment": "2026-11-30T12:01:30+00:00"}, dedupe_key="2026-11-30T12:01:30+00:00")]
    assert hand.time == NOON + timedelta(seconds=90)


async def test_a_moment_that_has_passed_fires_at_once() -> None:
    """Whoever comes late does not wait."""
    hand = HandClock()
    assert len(await run(DateTimeTrigger(NOON - timedelta(days=1), clock=hand.clock))) == 1
    assert hand.sleeps == []


async def test_never_sleeps_long() -> None:
    """A wait of a day is many short ones."""
    hand = HandClock()
    await run(DateTimeTrigger(NOON + timedelta(days=1), clock=hand.clock))
    assert max(hand.sleeps) <= LONGEST_SLEEP
    assert sum(hand.sleeps) == 86_400


async def test_a_clock_that_is_set_forward_fires_within_a_minute() -> None:
    """The wall clock decides: set past the moment, the next look finds it passed."""
    hand = HandClock(jumps=[timedelta(), timedelta(hours=2)])
    await run(DateTimeTrigger(NOON + timedelta(hours=1), clock=hand.clock))
    assert len(hand.sleeps) == 2


async def test_a_clock_that_is_set_back_waits_longer() -> None:
    """Set back just before the moment, it waits again until the clock shows it."""
    hand = HandClock(jumps=[timedelta(minutes=-30)])
    await run(DateTimeTrigger(NOON + timedelta(seconds=30), clock=hand.clock))
    assert hand.time == NOON + timedelta(seconds=30)
    assert sum(hand.sleeps) == 30 + 1800


async def test_a_cancelled_wait_is_cancelled() -> None:
    """Waiting holds up no shutdown."""
    task = asyncio.create_task(run(DateTimeTrigger(datetime.now(UTC) + timedelta(days=1))))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_sleeps_on_the_loop_s_clock() -> None:
    """Without a clock of the test's it sleeps by asyncio: hours pass at once in virtual time."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    clock = Clock(now=lambda: NOON + timedelta(seconds=loop.time() - began))
    assert len(await run(TimeDeltaTrigger(timedelta(minutes=50), clock=clock))) == 1
    assert loop.time() - began == pytest.approx(3000)


async def test_by_the_real_clock() -> None:
    """The default clock is the machine's, in UTC."""
    moment = datetime.now(timezone(timedelta(hours=5))) + timedelta(milliseconds=20)
    (event,) = await run(DateTimeTrigger(moment))
    assert datetime.now(UTC) >= moment
    assert event.payload == {"moment": moment.astimezone(UTC).isoformat()}


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2026, 7, 1, 12, tzinfo=UTC),
        "2026-07-01T12:00:00Z",
        "2026-07-01T07:00:00-05:00",
    ],
    ids=str,
)
def test_a_moment_is_the_same_in_every_zone(moment: Any) -> None:
    """Datetimes and ISO strings of any offset; stored and keyed in UTC; Airflow's second name for it too."""
    for trigger in (DateTimeTrigger(moment), DateTimeTrigger(target_time=moment, end_from_trigger=True)):
        assert trigger.moment == datetime(2026, 7, 1, 12, tzinfo=UTC)
        assert trigger.moment.isoformat() == "2026-07-01T12:00:00+00:00"
        path, kwargs = check_round_trip(trigger)
        assert load_trigger(path, kwargs).serialize() == trigger.serialize()


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"moment": datetime(2026, 7, 1)}, ValueError, "2026-07-01 00:00:00 has no time zone"),
        ({"moment": "2026-07-01T12:00:00"}, ValueError, "has no time zone"),
        ({"moment": "tomorrow"}, ValueError, "expected a time such as"),
        ({"moment": 12}, TypeError, "found int"),
        ({}, TypeError, "found NoneType"),
        ({"moment": NOON, "target_time": NOON}, TypeError, "not both"),
    ],
)
def test_what_is_no_moment_is_refused(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    """A moment without a time zone would be another one on another machine."""
    with pytest.raises(error, match=message):
        DateTimeTrigger(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "give delta"),
        ({"delta": 1, "moment": NOON}, "give delta"),
        ({"delta": "1h"}, "found str"),
        ({"delta": True}, "found bool"),
    ],
)
def test_what_is_no_duration_is_refused(kwargs: dict[str, Any], message: str) -> None:
    """A timedelta or seconds, and either that or a moment."""
    with pytest.raises(TypeError, match=message):
        TimeDeltaTrigger(**kwargs)


class Late(TimeDeltaTrigger):
    """A subclass with nothing of its own but its name."""


@pytest.mark.parametrize("kind", [TimeDeltaTrigger, Late])
async def test_a_restart_does_not_start_a_delta_over(kind: type[TimeDeltaTrigger]) -> None:
    """The moment is fixed when it is made: built again half-way, it waits for the other half, and is the same class."""
    trigger = kind(timedelta(hours=1), clock=HandClock().clock)
    stored = check_round_trip(trigger)
    later = HandClock(NOON + timedelta(minutes=30))
    rebuilt = kind(**stored.kwargs, clock=later.clock)
    assert (await run(rebuilt))[0].dedupe_key == (NOON + timedelta(hours=1)).isoformat()
    assert later.time == NOON + timedelta(hours=1)
    assert stored.path.endswith(f".{kind.__name__}")


def test_seconds_are_a_delta() -> None:
    """A config has no timedeltas: a number is seconds."""
    assert TimeDeltaTrigger(1.5, clock=HandClock().clock).moment == NOON + timedelta(seconds=1.5)
