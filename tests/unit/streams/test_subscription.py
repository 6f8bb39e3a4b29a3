"""R8 and the traps of pulling: which task is the filter's, which iterator is the valid one, and what outlives a subscription."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace import SharedStreamManager, StreamError, reject_shared_stream_event
from headrace.testing.virtual_time import in_virtual_time
from tests.unit.streams.harness import KEY, Source, trigger_of, turns


async def pull_plainly(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream)


async def pull_in_time(stream: AsyncIterator[Any]) -> Any:
    return await asyncio.wait_for(anext(stream), 1)


async def pull_in_time_by_iteration(stream: AsyncIterator[Any]) -> Any:
    return await asyncio.wait_for(anext(aiter(stream)), 1)


async def pull_in_time_wrapped(stream: AsyncIterator[Any]) -> Any:
    aiter(stream)
    return await asyncio.wait_for(pull_plainly(stream), 1)


@pytest.mark.parametrize("pull", [pull_plainly, pull_in_time, pull_in_time_by_iteration, pull_in_time_wrapped])
@in_virtual_time
async def test_r8_a_filter_rejects_in_its_own_task_however_it_pulls(pull: Any) -> None:
    """R8: also on Python 3.11, where wait_for pulls in a task of its own, and though another task has subscribed."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    seen = []

    async def run_filter() -> None:
        while True:
            try:
                seen.append(await pull(stream))
            except TimeoutError:
                continue
            if seen[-1] == "bad":
                reject_shared_stream_event()

    task = asyncio.create_task(run_filter())
    await asyncio.sleep(2.5)
    source.feed("good", "bad", "good again")
    await asyncio.sleep(2.5)
    source.feed("bad")
    await asyncio.sleep(2.5)
    assert seen == ["good", "bad", "good again", "bad"]
    assert [outcome.rejected for _, outcome in source.settled] == [0, 1, 0, 1][: len(source.settled)]
    assert len(source.settled) >= 3
    task.cancel()
    await manager.stop_all()


@in_virtual_time
async def test_r8_who_subscribed_for_a_filter_cannot_reject_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """R8: the event is in another task's hand."""
    manager, source = SharedStreamManager(), Source()
    stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    gate = asyncio.Event()

    async def run_filter() -> None:
        async for _ in stream:
            await gate.wait()

    task = asyncio.create_task(run_filter())
    source.feed("event")
    await turns()
    reject_shared_stream_event("not mine")
    assert "no event in hand that could be rejected" in caplog.text
    gate.set()
    await turns()
    assert source.counts == {"event": (1, 0, 0)}
    task.cancel()
    await manager.stop_all()


@in_virtual_time
async def test_a_task_that_subscribes_again_and_again_keeps_nothing() -> None:
    """R17: neither what `resume` replaced nor what was left stays with the task that asked it for events."""
    manager, source = SharedStreamManager(), Source()
    manager.subscribe(trigger_id="other", trigger=trigger_of(source), key=KEY)
    references = []
    for event in range(3):
        stream = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
        source.feed(event)
        await anext(stream)
        references.append(weakref.ref(stream))
        stream = manager.resume(trigger_id="a", key=KEY)
        await anext(stream)
        references.append(weakref.ref(stream))
        await manager.unsubscribe("a", KEY)
        del stream
    gc.collect()
    assert [reference() for reference in references] == [None] * 6
    await manager.stop_all()


@in_virtual_time
async def test_resume_ends_a_pull_that_still_waits_on_the_older_iterator() -> None:
    """A pull left behind in a task of its own by a filter that raised gets an error, and the new iterator the events."""
    manager, source = SharedStreamManager(), Source()
    older = manager.subscribe(trigger_id="a", trigger=trigger_of(source), key=KEY)
    left_behind = asyncio.create_task(pull_plainly(older))
    await turns()
    newer = manager.resume(trigger_id="a", key=KEY)
    pulling = asyncio.create_task(pull_plainly(newer))
    await turns()
    with pytest.raises(StreamError):
        await left_behind
    source.feed("event")
    assert await pulling == "event"
    await manager.stop_all()
