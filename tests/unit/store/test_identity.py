"""Names that last: ASCII, injective, bounded."""

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.store import Unit, event_identity
from headrace.store.identity import MAX_LENGTH, fold, message_key, parse_identity
from headrace.triggers.base import TriggerEvent

anything = st.text(st.characters())  # lone surrogates and NUL included


@given(anything)
@example("orders/0/17/1700000000.5")
@example("\0")
@example("\ud800")
def test_a_folded_text_is_printable_ascii_of_bounded_length(text: str) -> None:
    """Whatever a source calls its messages can be stored, indexed and printed."""
    folded = fold(text)
    assert folded.isascii()
    assert folded.isprintable()
    assert " " not in folded
    assert len(folded) <= MAX_LENGTH


@given(anything, anything)
@example("a b", "a%20b")
@example("x" * 600, "x" * 601)
@example("ü" * 300, "ü" * 299 + "ä")
def test_different_texts_fold_differently(one: str, other: str) -> None:
    """Folding loses nothing: two messages never share an identity."""
    assert (fold(one) == fold(other)) == (one == other)


def test_a_brokers_ordinary_id_stays_as_it_is() -> None:
    """Identities can be read where the ids they are made of can."""
    assert event_identity("eu-orders", fold("orders/0/17/1700000000"), 0) == "eu-orders:orders/0/17/1700000000:0"


def test_the_generation_is_named_from_the_first_raise_on() -> None:
    """Generation 0 leaves no trace in the identity, later ones do."""
    assert event_identity("t", "m", 2, 0) == "t:m:2"
    assert event_identity("t", "m", 2, 3) == "t:m:2.g3"


@given(anything.filter(lambda text: 0 < len(text) < 100), anything.filter(bool), st.integers(0, 10**6), st.integers(0, 99))
@example("a:b", "c:1.g2", 0, 1)
def test_an_identity_can_be_taken_apart(trigger_id: str, message_id: str, index: int, generation: int) -> None:
    """Whatever the trigger and the message are called, the parts of an identity are found again."""
    if trigger_id.encode("utf-8", "replace").decode() != trigger_id:
        return  # unquoting replaces lone surrogates; no trigger is registered with one
    parts = trigger_id, fold(message_id), index, generation
    assert parse_identity(event_identity(*parts)) == parts


def test_what_is_no_identity_is_not_parsed() -> None:
    """A typing mistake on the command line names no event."""
    assert parse_identity("orders") is None
    assert parse_identity("t:m:x") is None


def test_stand_ins_are_never_the_id_of_a_message() -> None:
    """A streamless trigger's events and those without an id begin with ~, which no folded id does."""
    by_key = Unit("t", None, None, [TriggerEvent(1, "2030-01-01")], lease_token=4, first_index=9)
    by_token = Unit("t", None, None, [TriggerEvent(1)], lease_token=4, first_index=9)
    assert message_key(by_key) == "~key:2030-01-01"
    assert message_key(by_token) == "~run:4.9"
    assert message_key(Unit("t", "s", None)).startswith("~raw:")
    assert message_key(Unit("t", "s", None)) != message_key(Unit("t", "s", None))
    assert not message_key(Unit("t", "s", "~run:4.9")).startswith("~")
