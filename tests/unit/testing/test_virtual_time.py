"""The virtual-time loop: time jumps, threads are waited for, and what would hang raises."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from headrace.testing.virtual_time import Deadlock, VirtualTimeLoop, in_virtual_time, run_virtual


@in_virtual_time
async def test_time_jumps_to_the_next_timer() -> None:
    """An hour of sleeping takes no time, and timers fire at their moments, in order."""
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    fired: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        fired.append((name, loop.time()))

    await asyncio.gather(sleeper("late", 3000), sleeper("early", 0.5), sleeper("middle", 60))
    assert fired == [("early", 0.5), ("middle", 60.0), ("late", 3000.0)]
    assert time.monotonic() - began < 5


@in_virtual_time
async def test_the_clock_stands_still_while_callbacks_are_ready() -> None:
    """No time passes between callbacks, however many there are."""
    loop = asyncio.get_running_loop()
    for _ in range(100):
        await asyncio.sleep(0)
    assert loop.time() == 0.0


@in_virtual_time
async def test_timeouts_are_virtual() -> None:
    """`asyncio.timeout` and `wait_for` expire by the virtual clock."""
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(300):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 20)
    assert loop.time() == 320.0


def test_a_deadlock_raises_and_names_what_waits() -> None:
    """With nothing ready and no timer the run ends with an error that names each task and where it waits."""
    cleaned = []

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(stuck(), name="the-stuck-one"))

    with pytest.raises(Deadlock, match=r"(?s)no timer is set.*the-stuck-one: Event.wait") as raised:
        run_virtual(main(), patience=0.05)
    assert "2 tasks wait" in str(raised.value)
    assert cleaned == [True], "tasks are cancelled as asyncio.run cancels them"


def test_a_timer_that_repeats_does_not_hide_a_deadlock() -> None:
    """A main task that waits for ever beside a ticking one ends at the limit, in virtual seconds."""

    async def main() -> None:
        async def tick() -> None:
            while True:  # noqa: ASYNC110  # the kind of loop that hides a deadlock
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group:
            group.create_task(tick())
            await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="after 100 virtual seconds"):
        run_virtual(main(), limit=100)


@in_virtual_time
async def test_the_clock_waits_for_an_executor() -> None:
    """A timeout around `to_thread` does not expire while the thread works, though a timer is due."""
    release = threading.Event()
    asyncio.get_running_loop().call_soon(release.set)

    def work() -> str:
        assert release.wait(5)
        time.sleep(0.02)  # real work: longer than a turn of the loop
        return "done"

    async with asyncio.timeout(0.001):
        assert await asyncio.to_thread(work) == "done"
    assert asyncio.get_running_loop().time() == 0.0


@in_virtual_time
async def test_other_threads_call_in() -> None:
    """`call_soon_threadsafe` and `run_coroutine_threadsafe` from a thread of one's own wake the loop."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()

    def work() -> None:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(5), loop).result(10)
        loop.call_soon_threadsafe(event.set)

    thread = threading.Thread(target=work)
    thread.start()
    await event.wait()
    thread.join()
    assert loop.time() == 5.0


@in_virtual_time
async def test_held_waits_in_real_time() -> None:
    """Inside `held()` the clock does not jump to a timer while a thread of one's own works."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    event = asyncio.Event()
    thread = threading.Timer(0.02, loop.call_soon_threadsafe, [event.set])
    thread.start()
    with loop.held():
        async with asyncio.timeout(0.001):
            await event.wait()
    thread.join()
    assert loop.time() == 0.0


def test_a_thread_that_never_ends_is_reported() -> None:
    """Waiting for a thread is bounded in real time."""
    release = threading.Event()

    async def main() -> None:
        asyncio.get_running_loop().call_later(3, release.set)  # never fires: the clock waits for the thread
        try:
            await asyncio.to_thread(release.wait, 10)
        finally:
            release.set()

    with pytest.raises(Deadlock, match="real seconds for another thread"):
        run_virtual(main(), patience=0.05)


@in_virtual_time
async def test_timers_fire_at_their_exact_moment() -> None:
    """A timer's callback never sees a clock before its deadline, for want of the last bit."""
    loop = asyncio.get_running_loop()
    for step in (0.1, 0.2, 1 / 3, 1e-7, 123.456):
        for _ in range(5):
            fired = loop.create_future()
            deadline = loop.time() + step * 0.7
            loop.call_at(deadline, fired.set_result, None)
            await fired
            assert loop.time() == deadline


def test_a_clock_of_centuries_still_moves() -> None:
    """Where adding a small delay rounds to the same number, the timer fires all the same."""

    async def main() -> None:
        await asyncio.sleep(2.0**40)
        await asyncio.sleep(1e-7)

    run_virtual(main(), limit=float("inf"))


def test_results_and_errors_pass_through() -> None:
    """`run_virtual` returns what the coroutine returns, and raises what it raises."""

    async def result() -> int:
        return 42

    async def error() -> None:
        raise KeyError("mine")

    assert run_virtual(result()) == 42
    with pytest.raises(KeyError, match="mine"):
        run_virtual(error())


@pytest.fixture
def number() -> int:
    return 7


@pytest.mark.parametrize("factor", [1, 2])
@in_virtual_time
async def test_the_decorator_keeps_fixtures_and_parameters(number: int, factor: int) -> None:
    """A decorated test still gets pytest's fixtures and parameters."""
    await asyncio.sleep(number * factor)
    assert asyncio.get_running_loop().time() == 7.0 * factor
