"""The claims this dispatcher holds, and the proof that it holds them.

A claim holds for the length of its lease from the moment before it was asked for, by our own clock: the database started
counting no earlier. It is renewed at a third of that. A call runs only while its claim is proven to hold: when another
replica has it, or when the store has not answered for so long that another may have it, the call is cancelled.
"""

from __future__ import annotations

import asyncio

from headrace.dispatch.backoff import Backoff
from headrace.dispatch.outbox import Outbox, log_store_error
from headrace.store import StoredEvent


class Claim:
    """One event that is ours, and the call under way for it. Times are the loop's."""

    __slots__ = ("_began_at", "_call", "_guard", "call_seconds", "event", "lost")

    def __init__(self, event: StoredEvent) -> None:
        self.event = event
        self.lost = False
        """Its call was cancelled because it does not hold any more."""
        self.call_seconds = 0.0
        self._began_at = 0.0
        self._call: asyncio.Task[None] | None = None
        self._guard: asyncio.TimerHandle | None = None

    @property
    def is_calling(self) -> bool:
        return self._call is not None

    def begin_call(self, task: asyncio.Task[None], held_until: float) -> None:
        """From now until `end_call` the task is cancelled when the claim is lost."""
        self._call = task
        self._began_at = task.get_loop().time()
        self.hold(held_until)

    def end_call(self) -> None:
        """What is left to do is safe without the claim, since marks are fenced."""
        if self._call is not None and self._guard is not None:
            self.call_seconds = self._call.get_loop().time() - self._began_at
            self._guard.cancel()
            self._call = None

    def hold(self, until: float) -> None:
        """It is proven to hold until then."""
        if self._call is not None:
            if self._guard is not None:
                self._guard.cancel()
            self._guard = self._call.get_loop().call_at(until, self.lose)

    def lose(self) -> None:
        """Another has it, or may have it: cancel the call."""
        if self._call is not None:
            self.lost = True
            self.give_up()

    def give_up(self) -> None:
        """Cancel the call, if one is under way."""
        if self._call is not None and not self._call.cancelling():  # a second one would break off the first one's clean-up
            self._call.cancel()


class ClaimKeeper:
    """Renews the claims in `held`, those whose call is over too: until they are marked they are ours to mark."""

    def __init__(self, outbox: Outbox, lease_seconds: float) -> None:
        self.held: set[Claim] = set()
        self._outbox = outbox
        self._lease_seconds = lease_seconds
        self._retries = Backoff(first=lease_seconds / 100, longest=lease_seconds / 6)

    async def run(self) -> None:
        """Renew for ever. While the store is away it goes on asking; the claims' own timers end the calls in the meantime."""
        failures = 0
        while True:
            await asyncio.sleep(self._retries.delay(failures) if failures else self._lease_seconds / 3)
            claims = list(self.held)
            if not claims:
                failures = 0
                continue
            asked_at = asyncio.get_running_loop().time()
            try:
                kept = await self._outbox.renew([claim.event for claim in claims], self._lease_seconds)
            except Exception as error:
                failures += 1
                log_store_error("claims are not renewed", error, first=failures == 1)
                continue
            failures = 0
            for claim in claims:
                if claim.event.id in kept:
                    claim.hold(asked_at + self._lease_seconds)
                else:
                    claim.lose()
