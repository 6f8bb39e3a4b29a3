"""Encryption of what may hold secrets."""

import pytest
from cryptography.fernet import Fernet

from headrace.connector import Message
from headrace.errors import ConfigError, SecretKeyMissing
from headrace.store.sealing import Sealer, pack_message, unpack_message

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


def test_the_first_key_seals_and_every_key_opens() -> None:
    """Keys are rotated by putting a new one first."""
    sealed = Sealer([OLD]).seal("password=hunter2")
    assert "hunter2" not in sealed
    assert Sealer([NEW, OLD]).unseal(sealed) == "password=hunter2"
    with pytest.raises(SecretKeyMissing):
        Sealer([OLD]).unseal(Sealer([NEW, OLD]).seal("x"))


def test_what_was_stored_before_the_first_key_stays_readable() -> None:
    """A store may get its keys later."""
    assert Sealer([NEW]).unseal(Sealer().seal("{}")) == "{}"


def test_without_its_key_nothing_is_opened() -> None:
    """No key, no content: an error, never a guess."""
    sealed = Sealer([OLD]).seal("x")
    for sealer in (Sealer(), Sealer([NEW])):
        assert sealer.try_unseal(sealed) is None
        with pytest.raises(SecretKeyMissing):
            sealer.unseal(sealed)


def test_wrong_keys_are_named_by_their_place_and_not_shown() -> None:
    """A key that is none is a mistake of the config, and still a secret."""
    with pytest.raises(ConfigError) as error:
        Sealer([OLD, "hunter2", "tr0ub4dor"])
    assert len(error.value.problems) == 2
    assert "store.secret_keys[1]" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_message_comes_back_byte_for_byte() -> None:
    """Null and empty differ, headers keep their order and repeats, bytes need not be text."""
    message = Message(
        value=b"\x00\xff", key=None, headers=(("h", b"1"), ("h", None), ("\ud800", b"")), id="i\0d",
        source="orders", timestamp=1.25, delivery_count=3,
    )  # fmt: skip
    again = unpack_message(pack_message(message))
    for field in ("value", "key", "headers", "id", "source", "timestamp", "delivery_count"):
        assert getattr(again, field) == getattr(message, field)
    assert unpack_message(pack_message(Message(value=None, key=b"", id="1", source="s", timestamp=0))).key == b""
