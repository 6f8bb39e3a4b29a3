"""Waiting for conditions."""

import asyncio

import pytest

from headrace.testing.virtual_time import run_virtual
from headrace.testing.waiting import eventually, wait_until


def test_wait_until_returns_when_it_is_true() -> None:
    """It asks again until the answer is yes."""
    answers = iter([False, None, "yes"])
    wait_until(lambda: next(answers))
    assert list(answers) == []


def test_wait_until_names_what_did_not_come_true() -> None:
    """The error shows the condition's source."""
    with pytest.raises(TimeoutError, match=r"not true within 0 s: .*2 \+ 2 == 5"):
        wait_until(lambda: 2 + 2 == 5, seconds=0.02)


def test_eventually_lets_the_loop_go_on() -> None:
    """A condition, or a coroutine function, is asked again while other tasks run."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        loop.call_later(5.0, done.set)
        await eventually(done.is_set)

        async def later() -> bool:
            return loop.time() >= 10.0

        await eventually(later)
        assert 10.0 <= loop.time() < 11.0
        with pytest.raises(TimeoutError, match="not true within 1 s"):
            await eventually(lambda: False, seconds=1.0)

    run_virtual(main())
