"""The leases that this process holds: renewed together at a third of their length, and given up before they expire unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import StoreError
from headrace.store import Lease, Leases

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 30.0
SAFETY: Final = 0.1
"""The part of a lease before its end in which it counts as lost, when it could not be renewed."""


@dataclass(slots=True)
class _Held:
    lease: Lease
    expires_at: float
    """By the loop's clock: the store's, seen from before the call that took or renewed it."""
    on_lost: Callable[[], None]


class LeaseKeeper:
    """`owner` names this process's life. `run` must be running while leases are held."""

    def __init__(self, leases: Leases, owner: str, seconds: float = LEASE_SECONDS) -> None:
        self.seconds = seconds
        self._leases = leases
        self._owner = owner
        self._held: dict[str, _Held] = {}
        self._clock = asyncio.get_running_loop().time

    async def acquire(self, name: str, on_lost: Callable[[], None]) -> Lease | None:
        """Take a lease; None while another owner has it. `on_lost` is called once, should it be lost before it is released.

        Raises `StoreUnavailable`.
        """
        before = self._clock()
        lease = await self._leases.acquire(name, self._owner, self.seconds)
        if lease is not None:
            self._held[name] = _Held(lease, before + self.seconds, on_lost)
        return lease

    async def release(self, lease: Lease) -> None:
        """Give it up so that others need not wait. Where the store does not answer they wait until it expires."""
        if (held := self._held.get(lease.name)) is not None and held.lease == lease:
            del self._held[lease.name]
        try:
            await self._leases.release([lease])
        except StoreError as error:
            log.info("lease %s: not released, it expires by itself: %s", lease.name, error)

    async def run(self) -> None:
        """Renew until cancelled."""
        pause = self.seconds / 3
        while True:
            await asyncio.sleep(pause)
            pause = self.seconds / 3 if await self._renew() else self.seconds / 30

    async def _renew(self) -> bool:
        """Renew all; whether the store answered."""
        held = dict(self._held)
        if not held:
            return True
        before = self._clock()
        try:
            async with asyncio.timeout(self.seconds / 3):
                kept = await self._leases.renew([each.lease for each in held.values()], self.seconds)
        except (StoreError, TimeoutError) as error:
            log.warning("leases: not renewed: %r", error)
            now = self._clock()
            for each in held.values():
                if now >= each.expires_at - SAFETY * self.seconds:
                    self._lose(each, "could not be renewed in time")
            return False
        for name, each in held.items():
            if name in kept:
                each.expires_at = before + self.seconds
            else:
                self._lose(each, "was taken over")
        return True

    def _lose(self, held: _Held, why: str) -> None:
        if self._held.get(held.lease.name) is held:
            del self._held[held.lease.name]
            log.warning("lease %s: %s", held.lease.name, why)
            held.on_lost()
