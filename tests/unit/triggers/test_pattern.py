"""The trigger of a config's `match`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from headrace import ConfigError, Message, SharedStreamManager, SharedStreamProducer
from headrace.testing.memory import MemoryBroker
from headrace.testing.virtual_time import in_virtual_time
from headrace.testing.waiting import eventually
from headrace.triggers import PatternTrigger, TriggerEvent, check_round_trip, load_trigger


def message(value: bytes | None, **more: Any) -> Message:
    return Message(**{"value": value, "id": "orders/0/7/1000", "source": "orders", "timestamp": 1.5, **more})


async def fired(trigger: PatternTrigger, raws: Iterable[Any]) -> list[TriggerEvent]:
    async def stream() -> AsyncIterator[Any]:
        for raw in raws:
            yield raw

    return [event async for event in trigger.filter_shared_stream(stream())]


async def test_derives_the_message_it_matches() -> None:
    """Value, key, headers, timestamp, source and id of a message that matches; nothing of one that does not."""
    trigger = PatternTrigger({"region": ["eu"], "amount": [{"numeric": [">", 100]}]})
    headers = (("trace", b"1"), ("trace", b"2"), ("raw", b"\xff"), ("empty", None))
    events = await fired(
        trigger,
        [
            message(b'{"region": "eu", "amount": 150}', key=b"k1", headers=headers),
            message(b'{"region": "eu", "amount": 50}'),
            message(b'{"region": "us", "amount": 150}'),
            message(b'{"region": "eu", "amount": 101}', key=b"\xfe"),
        ],
    )
    assert events == [
        TriggerEvent(
            {
                "value": {"region": "eu", "amount": 150},
                "key": "k1",
                "headers": {"trace": ["1", "2"], "raw": [{"base64": "/w=="}], "empty": [None]},
                "timestamp": 1.5,
                "source": "orders",
                "id": "orders/0/7/1000",
            }
        ),
        TriggerEvent(
            {
                "value": {"region": "eu", "amount": 101},
                "key": {"base64": "/g=="},
                "headers": {},
                "timestamp": 1.5,
                "source": "orders",
                "id": "orders/0/7/1000",
            }
        ),
    ]


async def test_derives_the_same_at_every_delivery() -> None:
    """What counts deliveries is no part of the payload."""
    trigger = PatternTrigger({"a": [1]})
    first, again = await fired(trigger, [message(b'{"a": 1}', delivery_count=1), message(b'{"a": 1}', delivery_count=2)])
    assert first == again


async def test_other_raw_events_are_matched_too() -> None:
    """A mapping is its own value; so is what a raw event's `json()` gives."""

    class Raw:
        def json(self) -> Any:
            return {"a": 1, "b": 2}

    assert await fired(PatternTrigger({"a": [1]}), [{"a": 1}, {"a": 2}, Raw()]) == [
        TriggerEvent({"value": {"a": 1}}),
        TriggerEvent({"value": {"a": 1, "b": 2}}),
    ]


async def test_k25_what_is_not_json_is_no_match_and_counted() -> None:
    """K25: a null value, broken JSON and other bytes are moved past and counted; JSON that is no object just does not match."""
    trigger = PatternTrigger({"a": [{"exists": False}]})
    raws = [
        message(None),
        message(b"{"),
        message(b"\xff"),
        message(b""),
        "text",
        message(b"[1]"),
        message(b"null"),
        message(b"{}"),
    ]
    assert len(await fired(trigger, raws)) == 1
    assert trigger.undecodable_count == 5


class OnBroker(PatternTrigger):
    """A pattern on a stream of a broker in memory."""

    broker: MemoryBroker

    def shared_stream_key(self) -> str:
        return "orders"

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        return cls.broker.create_producer()


@in_virtual_time
async def test_k25_what_is_not_json_is_rejected_where_the_stream_says_so() -> None:
    """K25: with `undecodable: reject` such a message is refused with its reason, also when the pattern is in the match index."""
    broker = MemoryBroker()
    broker.publish([message(b'{"a": 1}'), message(b"{"), message(None), message(b'{"a": 2}')])
    OnBroker.broker = broker
    trigger = OnBroker({"a": [1]}, undecodable="reject")
    assert trigger.shared_stream_match() == {"a": (1,)}
    manager = SharedStreamManager()
    stream = manager.subscribe(trigger_id="t", trigger=trigger, key="orders")
    got: list[Any] = []

    async def run() -> None:
        async for event in trigger.filter_shared_stream(stream):
            write = manager.bind_pending_event(trigger_id="t", key="orders")
            got.append(event.payload["value"])
            assert write is not None
            manager.confirm_persisted([write])

    task = asyncio.create_task(run())
    await eventually(lambda: len(broker.dead_letters) == 2)
    await manager.stop_all()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert got == [{"a": 1}]
    assert [dead.message.value for dead in broker.dead_letters] == [b"{", None]
    assert trigger.undecodable_count == 2


def test_tells_the_index_its_exact_values() -> None:
    """Exact values go to the match index by dotted field; a pattern without any is offered every event."""
    assert PatternTrigger({"o": {"a": ["x", 1]}, "b": [{"prefix": "p"}]}).shared_stream_match() == {"o.a": ("x", 1)}
    assert PatternTrigger({"b": [{"prefix": "p"}]}).shared_stream_match() is None


def test_is_stored_as_itself() -> None:
    """The real class path and the arguments that build an equal trigger; a subclass stays itself."""
    pattern = {"a": ["x", {"numeric": [">", 1]}], "$or": [{"b": [None]}, {"c": [True]}]}
    stored = check_round_trip(PatternTrigger(pattern, undecodable="reject"))
    assert stored == ("headrace.triggers.pattern.PatternTrigger", {"match": pattern, "undecodable": "reject"})
    rebuilt = load_trigger(stored.path, stored.kwargs)
    assert isinstance(rebuilt, PatternTrigger)
    assert rebuilt.serialize() == tuple(stored)
    assert OnBroker(pattern).serialize()[0].endswith("test_pattern.OnBroker")


def test_a_pattern_that_is_changed_later_changes_nothing() -> None:
    """The trigger keeps the pattern it was built with."""
    pattern: dict[str, Any] = {"a": [1]}
    trigger = PatternTrigger(pattern)
    pattern["a"].append(2)
    trigger.serialize()[1]["match"]["a"].append(3)
    assert trigger.serialize()[1]["match"] == {"a": [1]}
    assert not trigger.pattern.matches({"a": 2})


@pytest.mark.parametrize(
    ("kwargs", "problem"),
    [
        ({"match": {"a": "x"}}, "match.a: expected a list of values"),
        ({"match": {"a": [1]}, "undecodable": "ignore"}, "undecodable: expected 'no_match' or 'reject', found 'ignore'"),
    ],
)
def test_wrong_arguments_are_config_errors(kwargs: dict[str, Any], problem: str) -> None:
    """A wrong pattern, or another word for `undecodable`, is named when the trigger is built."""
    with pytest.raises(ConfigError, match="expected") as raised:
        PatternTrigger(**kwargs)
    assert problem in str(raised.value)
