"""Several processes on one database: no deadlock, nothing twice; and one that dies in the middle leaves nothing by halves."""

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.store import EventState, Store, Unit
from headrace.triggers.base import TriggerEvent

OpenStore = Callable[..., Awaitable[Store]]
MakeUnit = Callable[..., Unit]


async def test_two_writers_of_overlapping_units_store_each_once(
    open_store: OpenStore, write_to: Any, unit: MakeUnit, caplog: Any
) -> None:
    """Replicas that got the same messages, in different orders and with the same keys, store each once and do not deadlock."""
    caplog.set_level("INFO", logger="headrace.store")
    stores = [await open_store() for _ in range(3)]
    writers = [write_to(store, max_group=50) for store in stores]
    chance = random.Random(7)

    def units() -> list[Unit]:
        made = [unit(str(n), TriggerEvent(n, f"key {n // 2}"), f"{n} again", trigger_id=f"t{n % 5}") for n in range(400)]
        chance.shuffle(made)
        return made

    await asyncio.gather(*(writing.store(*units()) for writing in writers))
    for writing in writers:
        assert len(writing.stored) == 400
        assert writing.available == []
    records = await stores[0].events.find(limit=10_000)
    assert len({record.event.identity for record in records}) == len(records)
    assert sum(writing.groups[n].new_units for writing in writers for n in range(len(writing.groups))) == 400
    keys = Counter((record.event.trigger_id, record.event.dedupe_key) for record in records if record.event.dedupe_key)
    assert len(keys) == 400  # the two messages of a key belong to different triggers
    assert set(keys.values()) == {1}
    assert "is tried again" not in caplog.text


async def test_x16_replicas_share_an_outbox_and_hand_each_event_out_once(
    open_store: OpenStore, write_to: Any, unit: MakeUnit
) -> None:
    """X16: four dispatchers that claim and mark as fast as they can deliver each event once."""
    stores = [await open_store() for _ in range(2)]
    await write_to(stores[0]).store(*(unit(str(n), n) for n in range(300)))
    handled: list[int] = []

    async def dispatch(store: Store, owner: str) -> None:
        while events := await store.outbox.claim(owner, 7, 60):
            handled.extend(event.id for event in events)
            assert all(await asyncio.gather(*(store.outbox.mark_delivered(event) for event in events)))

    await asyncio.gather(*(dispatch(store, f"{owner} {n}") for n, store in enumerate(stores) for owner in ("a", "b")))
    assert sorted(handled) == sorted({*handled})
    assert await stores[0].events.counts() == {("t", EventState.DELIVERED): 300}


WRITING_UNTIL_KILLED = """
import asyncio, sys
from headrace.store import Store, Unit, Writer
from headrace.triggers.base import TriggerEvent

async def main():
    store = await Store.open(sys.argv[1])
    def on_stored(units):
        print(*(unit.message_id for unit in units), flush=True)
    writer = Writer(store, on_stored=on_stored, on_refused=lambda unit, error: None, max_group=60)
    n = 0
    while True:
        writer.submit(Unit("t", "orders", str(n), [TriggerEvent(i) for i in range(5)]))
        n += 1
        if writer.pending_units > 50:
            await writer.flush()

asyncio.run(main())
"""


async def test_x3_killed_at_any_moment_every_unit_is_whole_or_not_there(
    open_store: OpenStore, database_url: str, write_to: Any, unit: MakeUnit
) -> None:
    """X3: after SIGKILL each unit has all its events or none, all that was answered is there, and a redelivery fills the rest."""
    store = await open_store()
    chance = random.Random(3)
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITING_UNTIL_KILLED, database_url, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 6)):
            assert await process.stdout.readline()
        await asyncio.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        answered = (await process.stdout.read()).split()[:-1]  # the last line may be cut
        await process.wait()
        events = Counter(record.event.message_id for record in await store.events.find(limit=100_000))
        assert set(events.values()) == {5}
        assert {message_id.decode() for message_id in answered} <= set(events)
    stored = len(events)
    await write_to(store).store(*(unit(str(n), *range(5)) for n in range(stored + 10)))
    assert len(await store.events.find(limit=100_000)) == (stored + 10) * 5
