"""Calls that come while one is under way are made together by the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Turns a function of many items into one of a single item, at the same number of transactions under load."""

    def __init__(self, call: Callable[[list[Item]], Awaitable[Sequence[Result]]], *, limit: int) -> None:
        """`call` returns a result for each item, in their order; it is never called twice at once."""
        self._call = call
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """The item's result, or what `call` raised for its batch. Cancelling gives up the waiting, not the item."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="headrace-batch")
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                await self._answer(batch)
        finally:
            self._task = None

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._call([item for item, _ in batch])
        except Exception as error:  # each caller gets it
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        except asyncio.CancelledError:
            for _, future in batch:
                future.cancel()
            raise
        else:
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)

    async def aclose(self) -> None:
        """Wait for what is under way; cancelled, cancel it and its callers."""
        if (task := self._task) is not None:
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
