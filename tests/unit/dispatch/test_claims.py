"""The proof that a claim is held, apart from the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from headrace.dispatch.claims import Claim, ClaimKeeper
from headrace.errors import StoreUnavailable
from headrace.testing.virtual_time import in_virtual_time

LEASE = 30.0


class SlowOnce:
    """Answers the first renewal after 8 s, and none after it."""

    def __init__(self) -> None:
        self.asked_at: list[float] = []

    async def renew(self, events: Collection[Any], lease_seconds: float) -> set[int]:
        self.asked_at.append(asyncio.get_running_loop().time())
        if len(self.asked_at) > 1:
            raise StoreUnavailable("away")
        await asyncio.sleep(8)
        return {event.id for event in events}


@in_virtual_time
async def test_a_renewal_proves_from_the_moment_it_was_asked_for(event: Any) -> None:
    """The database may have started the new lease at any time before its answer came: the call ends a lease after the question.
    Until then failed renewals are tried again, and more often than a third of the lease."""
    outbox: Any = SlowOnce()
    keeper = ClaimKeeper(outbox, LEASE)
    claim = Claim(event())
    call = asyncio.create_task(asyncio.sleep(1000))
    claim.begin_call(call, held_until=LEASE)
    keeper.held.add(claim)
    renewing = asyncio.create_task(keeper.run())
    await asyncio.wait({call})
    renewing.cancel()
    assert call.cancelled()
    assert claim.lost
    assert asyncio.get_running_loop().time() == outbox.asked_at[0] + LEASE == LEASE / 3 + LEASE
    assert len(outbox.asked_at) > 5


@in_virtual_time
async def test_a_call_is_cancelled_once(event: Any) -> None:
    """A claim that is lost while its cancelled call still cleans up does not break off the clean-up."""
    cleaned = False

    async def call() -> None:
        nonlocal cleaned
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(LEASE)
            cleaned = True

    claim, task = Claim(event()), asyncio.create_task(call())
    claim.begin_call(task, held_until=LEASE)
    await asyncio.sleep(LEASE / 2)
    claim.give_up()
    await asyncio.wait({task})
    assert (cleaned, claim.lost, task.cancelled()) == (True, True, True)


@in_virtual_time
async def test_what_happens_after_the_call_needs_no_claim(event: Any) -> None:
    """A call that is over is not cancelled any more: marking its result is fenced by the store."""
    claim, task = Claim(event()), asyncio.create_task(asyncio.sleep(1000))
    claim.begin_call(task, held_until=LEASE)
    await asyncio.sleep(7)
    claim.end_call()
    claim.lose()
    claim.hold(LEASE)
    await asyncio.sleep(2 * LEASE)
    assert not task.done()
    assert (claim.lost, claim.call_seconds) == (False, 7)
    task.cancel()
