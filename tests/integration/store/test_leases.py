"""Leases are fenced, and run by the database's clock."""

import asyncio
from collections.abc import Awaitable, Callable

from headrace.store import Store

PassTime = Callable[[Store, float], Awaitable[None]]


async def test_a_lease_has_one_holder(store: Store) -> None:
    """Of several that want it one gets it, and the others not while it lasts."""
    leases = await asyncio.gather(*(store.leases.acquire("clock", f"owner {n}", 30) for n in range(5)))
    (held,) = [lease for lease in leases if lease is not None]
    assert (held.name, held.token) == ("clock", 1)
    assert await store.leases.acquire("clock", "late", 30) is None
    assert await store.leases.acquire("another", "late", 30) is not None


async def test_a_takeover_has_a_higher_token_and_the_old_holder_is_told(store: Store, pass_time: PassTime) -> None:
    """An expired lease goes to the next, and whoever held it cannot renew or release it any more."""
    old = await store.leases.acquire("clock", "old", 30)
    assert old is not None
    await pass_time(store, 31)
    new = await store.leases.acquire("clock", "new", 30)
    assert new is not None
    assert new.token == old.token + 1
    assert await store.leases.renew([old], 30) == set()
    await store.leases.release([old])
    assert await store.leases.renew([new], 30) == {"clock"}


async def test_a_renewed_lease_lasts(store: Store, pass_time: PassTime) -> None:
    """Renewing prolongs many at once, also one that expired and that nobody took."""
    leases = [lease for name in "abc" if (lease := await store.leases.acquire(name, "me", 30))]
    await pass_time(store, 20)
    assert await store.leases.renew(leases, 30) == {"a", "b", "c"}
    await pass_time(store, 20)
    assert await store.leases.acquire("a", "other", 30) is None
    await pass_time(store, 20)
    assert await store.leases.acquire("a", "other", 30) is not None
    assert await store.leases.renew(leases, 30) == {"b", "c"}


async def test_a_released_lease_is_free_at_once_and_its_tokens_go_on(store: Store) -> None:
    """Nobody waits for what was given up, and no token is ever used twice."""
    lease = await store.leases.acquire("clock", "me", 1000)
    assert lease is not None
    await store.leases.release([lease])
    following = await store.leases.acquire("clock", "other", 1000)
    assert following is not None
    assert following.token == lease.token + 1


async def test_the_same_owner_may_take_its_lease_again(store: Store) -> None:
    """Asking again is no deadlock with oneself; the token tells the two apart."""
    first = await store.leases.acquire("clock", "me", 30)
    second = await store.leases.acquire("clock", "me", 30)
    assert first is not None
    assert second is not None
    assert await store.leases.renew([first], 30) == set()
    assert await store.leases.renew([second], 30) == {"clock"}
