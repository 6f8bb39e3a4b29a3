"""Messages given up can be found, read with the right key, and deleted."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select

from headrace.connector import Message
from headrace.errors import SecretKeyMissing
from headrace.store import DeadLetter, Store, Unit
from headrace.store.schema import dead_letter

MakeUnit = Callable[..., Unit]


def letter(cause: Any = "failed", value: bytes = b"hunter2") -> DeadLetter:
    message = Message(value=value, id="m", source="orders", timestamp=1.0)
    return DeadLetter(cause, "ValueError", traceback="Traceback", attempts=5, message=message)


async def test_dead_letters_are_found_by_trigger_and_cause_in_pages(store: Store, writing: Any, unit: MakeUnit) -> None:
    """A list is narrowed and paged through, newest first."""
    await writing.store(
        *(unit(f"f{n}", dead=letter("failed")) for n in range(3)),
        unit("r", dead=letter("rejected")),
        unit("f0", dead=letter("failed"), trigger_id="u"),
    )
    first = await store.dead_letters.find(trigger_id="t", cause="failed", limit=2)
    rest = await store.dead_letters.find(trigger_id="t", cause="failed", limit=2, before=first[-1].id)
    assert [record.message_id for record in first + rest] == ["f2", "f1", "f0"]
    assert first[0].size == 7
    assert await store.dead_letters.counts() == {("t", "failed"): 3, ("t", "rejected"): 1, ("u", "failed"): 1}
    assert await store.dead_letters.show(4711) is None


async def test_raw_bytes_are_encrypted(
    open_store: Callable[..., Awaitable[Store]], write_to: Callable[..., Any], unit: MakeUnit
) -> None:
    """With a key the database holds no message in the clear, and without it nobody reads one."""
    key = Fernet.generate_key().decode()
    store = await open_store(secret_keys=[key])
    await write_to(store).store(unit("m", dead=letter()))
    content = await store.database.read(lambda connection: connection.execute(select(dead_letter.c.content)).scalar_one())
    assert content.startswith("fernet:")
    shown = await store.dead_letters.show(1)
    assert shown is not None
    assert shown.message is not None
    assert shown.message.value == b"hunter2"
    blind = await open_store()
    assert len(await blind.dead_letters.find()) == 1
    with pytest.raises(SecretKeyMissing):
        await blind.dead_letters.show(1)


async def test_a_letter_without_a_message_is_stored_too(store: Store, writing: Any, unit: MakeUnit) -> None:
    """A raw event that is no Message leaves at least its reason."""
    await writing.store(unit("m", dead=DeadLetter("failed", "ValueError")))
    shown = await store.dead_letters.show(1)
    assert shown is not None
    assert (shown.message, shown.source, shown.size, shown.reason) == (None, None, 0, "ValueError")


async def test_purging_deletes_the_content_and_keeps_the_identity(store: Store, writing: Any, unit: MakeUnit) -> None:
    """What must not be kept is deleted, and its redelivery still changes nothing."""
    await writing.store(unit("m", dead=letter()), unit("n", dead=letter()))
    assert await store.dead_letters.purge([1, 99]) == 1
    assert await store.dead_letters.purge([1]) == 0
    shown = await store.dead_letters.show(1)
    assert shown is not None
    assert (shown.message, shown.traceback, shown.reason) == (None, None, "ValueError")
    await writing.store(unit("m", "liked"))
    assert await store.events.find() == []
