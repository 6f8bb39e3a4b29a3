"""The `callable` target: what functions it takes, and what becomes of what they do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from headrace.dispatch.attempt import attempt
from headrace.dispatch.targets.callable import CallableConfig, CallableTarget
from headrace.errors import ConfigError, TargetError, TargetRejected


@pytest.fixture
def handlers() -> Iterator[ModuleType]:
    """A module to import functions from."""
    module = ModuleType("handlers_of_a_test")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pytest.fixture
def target(handlers: ModuleType) -> Callable[..., CallableTarget]:
    """Makes a target of a function."""

    def make(function: Callable[[Any], Any], **config: Any) -> CallableTarget:
        handlers.function = function  # type: ignore[attr-defined]
        return CallableTarget(CallableConfig(function="handlers_of_a_test:function", **config))

    return make


async def test_an_async_function_is_awaited_on_the_loop(target: Any, event: Any) -> None:
    """It gets the stored event, and runs in the loop's own thread."""
    seen = []

    async def handle(stored: Any) -> None:
        await asyncio.sleep(0)
        seen.append((stored.identity, stored.trigger_id, stored.payload, threading.current_thread()))

    verdict = await attempt(target(handle), event(3), 0.0)
    assert verdict.outcome == "delivered"
    assert seen == [("eu-orders:orders/0/3/0:0", "eu-orders", {"n": 3}, threading.main_thread())]


async def test_a_plain_function_runs_in_a_thread_with_the_log_context(target: Any, event: Any) -> None:
    """It may block: the loop goes on. Its own log lines have the event's context."""
    seen: list[Any] = []
    release = threading.Event()

    def handle(stored: Any) -> None:
        seen.append((threading.current_thread() is threading.main_thread(), structlog.contextvars.get_contextvars()))
        release.wait(10)

    structlog.contextvars.bind_contextvars(event_id="e1")
    task = asyncio.create_task(attempt(target(handle), event(), 0.0))
    while not seen:  # noqa: ASYNC110  # the other side is a thread
        await asyncio.sleep(0.001)
    release.set()
    assert (await task).outcome == "delivered"
    assert seen == [(False, {"event_id": "e1"})]


async def test_a_coroutine_that_a_plain_function_returns_is_awaited(target: Any, event: Any) -> None:
    """A wrapper that hides `async` loses nothing."""
    seen = []

    async def handle(stored: Any) -> None:
        seen.append(stored.id)

    assert (await attempt(target(lambda stored: handle(stored)), event(5), 0.0)).outcome == "delivered"
    assert seen == [5]


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "outcome", "answer"),
    [
        (ValueError("no such order"), "retry", "ValueError: no such order"),
        (TargetError("later", retry_after=5), "retry", "later"),
        (TargetRejected("never"), "dead", "never"),
        (SystemExit(3), "retry", "handlers_of_a_test:function raised SystemExit"),
    ],
)
async def test_what_a_function_raises_decides(
    target: Any, event: Any, error: BaseException, outcome: str, answer: str, is_async: bool
) -> None:
    """An exception is tried again, `TargetRejected` is dead, and none of them ends the process."""

    def handle(stored: Any) -> None:
        raise error

    async def handle_async(stored: Any) -> None:
        raise error

    verdict = await attempt(target(handle_async if is_async else handle), event(), 0.0)
    assert (verdict.outcome, verdict.answer) == (outcome, answer)


async def test_stop_iteration_is_an_exception_like_others(target: Any, event: Any) -> None:
    """A bare `next()` in a handler that finds nothing is tried again; a future could not even carry it."""
    verdict = await attempt(target(lambda stored: next(iter(()))), event(), 0.0)
    assert (verdict.outcome, "StopIteration" in verdict.answer) == ("retry", True)


async def test_a_thread_past_its_timeout_keeps_its_place(target: Any, event: Any) -> None:
    """A function that hangs is given up after `timeout`; its thread still counts, so that hung calls never grow without bound,
    and is a daemon, so that the process can end."""
    release = threading.Event()
    threads: list[threading.Thread] = []

    def handle(stored: Any) -> None:
        threads.append(threading.current_thread())
        release.wait(30)

    hanging = target(handle, timeout=0.02, max_concurrency=2)
    for _ in range(2):
        verdict = await attempt(hanging, event(), 0.0)
        assert verdict.answer == "no answer within 0.02 s"
    verdict = await attempt(hanging, event(), 0.0)
    assert verdict.answer == "2 calls of handlers_of_a_test:function are still running past their timeout"
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)
    release.set()
    for thread in threads:
        thread.join(10)
    await asyncio.sleep(0)
    assert (await attempt(hanging, event(), 0.0)).outcome == "delivered"


class Handler:
    def method(self, stored: Any) -> None:
        """A bound method is a function too."""


@pytest.mark.parametrize("path", ["handlers_of_a_test:handler.method", "handlers_of_a_test.top"])
def test_a_function_is_named_by_its_path(handlers: Any, path: str) -> None:
    """`module:attribute`, with dots in the attribute, or dotted."""
    handlers.handler, handlers.top = Handler(), lambda event: None
    assert CallableTarget(CallableConfig(function=path)).kind == "callable"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module_here:f", "cannot import 'no_such_module_here'"),
        ("handlers_of_a_test:missing", "'handlers_of_a_test' has no 'missing'"),
        ("handlers_of_a_test:number", "is not callable: it is of type int"),
    ],
)
def test_a_function_that_is_not_there_is_a_config_error(handlers: Any, path: str, says: str) -> None:
    """Found when the target is built, with what is missing."""
    handlers.number = 3
    with pytest.raises(ConfigError, match=says):
        CallableTarget(CallableConfig(function=path))


@pytest.mark.parametrize("path", ["", "module", "module:", ":function", "a b:c", "module:f()"])
def test_what_is_no_path_is_refused(path: str) -> None:
    """Before anything is imported."""
    with pytest.raises(ValidationError, match="is not of the form"):
        CallableConfig(function=path)
