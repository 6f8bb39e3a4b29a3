"""How a scenario is written: `@scenario`, and the small things that scenarios share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

import pytest

from headrace.connector import Message
from headrace.streams.contract import SharedStreamProducer
from headrace.testing.conformance.harness import ACKED, Event, Harness, Reader

Suite = TypeVar("Suite", bound="Scenarios")


class Scenarios:
    """A group of scenarios; each takes the fixture `harness`."""

    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError("define the fixture `harness`, which returns a Harness for your broker")


def scenario(test: Callable[[Suite, Harness], Coroutine[Any, Any, None]]) -> Callable[[Suite, Harness], None]:
    """Make an async scenario a plain test that runs on the harness' loop."""

    @functools.wraps(test)
    def run(self: Suite, harness: Harness) -> None:
        async def main() -> None:
            async with harness:
                await test(self, harness)

        harness.run(main())

    return run


def messages(count: int, *, key: bytes | None = b"k", start: int = 0, prefix: str = "m") -> list[Message]:
    """Messages whose values say their number."""
    return [message(f"{prefix}{number}".encode(), key) for number in range(start, start + count)]


def message(value: bytes | None, key: bytes | None = b"k", headers: tuple[tuple[str, bytes | None], ...] = ()) -> Message:
    return Message(value=value, key=key, headers=headers, id="", source="", timestamp=0.0)


def values(events: Sequence[Event]) -> list[bytes | None]:
    return [event.value for event in events]


def require_ordered(producer: SharedStreamProducer) -> None:
    if not producer.capabilities.ordered:
        pytest.skip("the producer's capabilities do not say `ordered`")


def require_pause(producer: SharedStreamProducer) -> None:
    if type(producer).pause is SharedStreamProducer.pause:
        pytest.skip("the producer does not implement pause and resume")


async def several_lanes(harness: Harness, reader: Reader) -> tuple[Event, dict[bytes, Hashable]]:
    """Have one event of each of some lanes; settle all but one, and return it and a key of each other lane."""
    await harness.publish([message(b"first", f"lane {number}".encode()) for number in range(12)])
    events = await reader.take(12)
    keys = {event.lane: event.message.key or b"" for event in events}
    if len(keys) < 2:
        pytest.skip("the broker has one lane")
    lane = events[0].lane
    *before, chosen = (event for event in events if event.lane == lane)  # several keys may share a lane
    await reader.settle([*before, *(event for event in events if event.lane != lane)], ACKED)
    return chosen, {key: other for other, key in keys.items() if other != lane}


async def cancel(harness: Harness, call: Coroutine[Any, Any, None], turns: int) -> bool:
    """Start a call, let the loop turn a few times, cancel it. False: it was done by then."""
    task = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    _, pending = await asyncio.wait([task], timeout=harness.patience)
    assert not pending, "a cancelled advance must end at once"
    if not task.cancelled():
        task.result()
    return task.cancelled()
