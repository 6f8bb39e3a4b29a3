"""Calls that come while one is under way are made together."""

import asyncio

import pytest

from headrace.store.batching import Batcher


class Calls:
    """A call that returns when told, and remembers what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.began = asyncio.Event()
        self.may_return = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        self.began.set()
        await self.may_return.wait()
        if self.error is not None:
            raise self.error
        return [item * 10 for item in items]


async def test_what_comes_meanwhile_goes_together() -> None:
    """The first goes alone, what comes while it is under way goes with the next call, up to its limit."""
    calls = Calls()
    batcher = Batcher(calls, limit=3)
    first = asyncio.create_task(batcher(1))
    await calls.began.wait()
    rest = [asyncio.create_task(batcher(item)) for item in range(2, 7)]
    await asyncio.sleep(0)
    calls.may_return.set()
    assert await asyncio.gather(first, *rest) == [10, 20, 30, 40, 50, 60]
    assert calls.batches == [[1], [2, 3, 4], [5, 6]]


async def test_an_error_reaches_each_caller_of_its_batch_and_no_other() -> None:
    """One failed transaction fails those that were in it; the next is tried."""
    calls = Calls()
    batcher = Batcher(calls, limit=10)
    calls.error = ValueError("no")
    calls.may_return.set()
    for result in await asyncio.gather(batcher(1), batcher(2), return_exceptions=True):
        assert isinstance(result, ValueError)
    calls.error = None
    assert await batcher(3) == 30


async def test_a_cancelled_caller_does_not_harm_the_others() -> None:
    """Giving up the waiting is private."""
    calls = Calls()
    batcher = Batcher(calls, limit=10)
    one, two = asyncio.create_task(batcher(1)), asyncio.create_task(batcher(2))
    await calls.began.wait()
    one.cancel()
    calls.may_return.set()
    assert await two == 20
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_closing_waits_for_the_call_under_way_until_it_is_cancelled() -> None:
    """A call that never returns is given up at the closer's deadline, and its callers with it."""
    batcher = Batcher(Calls(), limit=10)
    caller = asyncio.create_task(batcher(1))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(batcher.aclose(), 0.01)
    with pytest.raises(asyncio.CancelledError):
        await caller
