"""Registered triggers keep what users made of them, and their kwargs to themselves."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select

from headrace.errors import SecretKeyMissing, Unstorable
from headrace.store import Store, TriggerDefinition, TriggerState
from headrace.store.schema import trigger

OpenStore = Callable[..., Awaitable[Store]]


def definition(trigger_id: str = "eu-orders", **kwargs: Any) -> TriggerDefinition:
    return TriggerDefinition(trigger_id, "shop.triggers.Orders", kwargs, "orders")


async def test_a_registered_trigger_comes_back(store: Store) -> None:
    """What was registered is found as it was, in the order it was given in."""
    wanted = [definition("b", level="high", nested={"n": [1, None]}), definition("a")]
    records = await store.triggers.register(wanted)
    assert [record.definition for record in records] == wanted
    assert {record.state for record in records} == {TriggerState.ACTIVE}
    assert [record.definition.trigger_id for record in await store.triggers.all()] == ["a", "b"]
    assert (await store.triggers.get("b")).definition.kwargs == {"level": "high", "nested": {"n": [1, None]}}
    with pytest.raises(LookupError, match="'unknown'"):
        await store.triggers.get("unknown")


async def test_an_unchanged_trigger_keeps_state_and_revision(store: Store) -> None:
    """A restart changes nothing by itself."""
    await store.triggers.register([definition(level="high")])
    before = await store.triggers.set_state("eu-orders", TriggerState.FINISHED, "its run() returned")
    (after,) = await store.triggers.register([definition(level="high")])
    assert (after.state, after.reason, after.revision) == (TriggerState.FINISHED, "its run() returned", before.revision)


@pytest.mark.parametrize(
    ("state", "afterwards"),
    [
        (TriggerState.FINISHED, TriggerState.ACTIVE),
        (TriggerState.FAILED, TriggerState.ACTIVE),
        (TriggerState.PAUSED, TriggerState.PAUSED),
        (TriggerState.REMOVED, TriggerState.REMOVED),
    ],
)
async def test_a_changed_trigger_starts_anew_unless_a_user_stopped_it(
    store: Store, state: TriggerState, afterwards: TriggerState
) -> None:
    """New kwargs revive what had ended by itself; paused and removed outlive restarts and new configs."""
    await store.triggers.register([definition(level="high")])
    await store.triggers.set_state("eu-orders", state)
    (record,) = await store.triggers.register([definition(level="low")])
    assert record.state is afterwards
    assert record.definition.kwargs == {"level": "low"}


async def test_changes_are_seen_once_and_in_order(store: Store) -> None:
    """A running serve asks for what changed since it asked last, and gets that and no more."""
    await store.triggers.register([definition("a"), definition("b"), definition("c")])
    seen = (await store.triggers.changed_since(0))[-1].revision
    assert await store.triggers.changed_since(seen) == []
    await store.triggers.set_state("c", TriggerState.PAUSED)
    await store.triggers.set_state("a", TriggerState.REMOVED)
    await store.triggers.set_state("b", TriggerState.ACTIVE)  # it is: no change
    changed = await store.triggers.changed_since(seen)
    assert [(record.definition.trigger_id, record.state) for record in changed] == [
        ("c", TriggerState.PAUSED),
        ("a", TriggerState.REMOVED),
    ]


async def test_a_state_that_depends_on_the_present_one_does_not_override_a_user(store: Store) -> None:
    """A trigger that ends while a user removes it stays removed."""
    await store.triggers.register([definition()])
    await store.triggers.set_state("eu-orders", TriggerState.REMOVED)
    record = await store.triggers.set_state("eu-orders", TriggerState.FINISHED, only_from=[TriggerState.ACTIVE])
    assert record.state is TriggerState.REMOVED
    with pytest.raises(LookupError):
        await store.triggers.set_state("unknown", TriggerState.PAUSED)


async def test_replicas_that_register_at_once_agree(open_store: OpenStore) -> None:
    """Two that start together register the same triggers, each once."""
    stores = [await open_store(), await open_store()]
    definitions = [definition(f"t{n}") for n in range(20)]
    one, two = await asyncio.gather(*(store.triggers.register(definitions) for store in stores))
    assert one == two
    assert len({record.revision for record in one}) == 20


async def test_kwargs_are_encrypted_and_keys_can_be_rotated(open_store: OpenStore) -> None:
    """With a key the database holds no secret; a restart with a new first key moves what is stored to it."""
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()

    async def stored_text(store: Store) -> str:
        text: str = await store.database.read(lambda connection: connection.execute(select(trigger.c.kwargs)).scalar_one())
        return text

    plain = await open_store()
    (first,) = await plain.triggers.register([definition(password="hunter2")])
    assert "hunter2" in await stored_text(plain)
    for keys in ([old], [new, old], [new]):
        store = await open_store(secret_keys=keys)
        (record,) = await store.triggers.register([definition(password="hunter2")])
        assert record.definition.kwargs == {"password": "hunter2"}
        assert record.revision == first.revision
        assert "hunter2" not in await stored_text(store)
    with pytest.raises(SecretKeyMissing):
        await (await open_store(secret_keys=[old])).triggers.all()
    (again,) = await (await open_store(secret_keys=[old])).triggers.register([definition(password="hunter2")])
    assert again.definition.kwargs == {"password": "hunter2"}


async def test_secrets_are_in_no_repr_and_no_error(store: Store) -> None:
    """What a log line may show of a trigger are its names."""
    (record,) = await store.triggers.register([definition(password="hunter2")])
    assert "hunter2" not in repr(record)
    with pytest.raises(Unstorable, match=r"kwargs of trigger eu-orders\.password is of type bytes") as error:
        await store.triggers.register([definition(password=b"hunter2")])
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("trigger_id", ["", "a\0b", "a\nb", "x" * 201])
async def test_an_id_that_is_none_is_refused(store: Store, trigger_id: str) -> None:
    """Ids go into identities, logs and file names: they are short and printable."""
    with pytest.raises(ValueError, match="200 printable characters"):
        await store.triggers.register([definition(trigger_id)])
