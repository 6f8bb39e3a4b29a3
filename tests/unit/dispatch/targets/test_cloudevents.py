"""A stored event as a CloudEvents 1.0 event."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import orjson
import pytest

from headrace.dispatch.targets.cloudevents import attributes, encode


def test_structured_mode_is_one_json_document(event: Any) -> None:
    """All attributes and the payload, under the names of the specification; the id is the event's identity."""
    headers, body = encode(event(7, published_at=1_700_000_000.25), "structured")
    assert headers == {"Content-Type": "application/cloudevents+json; charset=UTF-8"}
    assert orjson.loads(body) == {
        "specversion": "1.0",
        "id": "eu-orders:orders/0/7/0:0",
        "source": "/headrace/streams/orders",
        "type": "headrace.trigger.event",
        "time": "2023-11-14T22:13:20.250Z",
        "datacontenttype": "application/json",
        "trigger": "eu-orders",
        "stream": "orders",
        "data": {"n": 7},
    }


def test_binary_mode_is_the_payload_with_headers(event: Any) -> None:
    """The body is the payload alone; the attributes are `ce-` headers and agree with the structured mode's."""
    stored = event(7, stored_at=1_700_000_000.0)
    headers, body = encode(stored, "binary")
    assert orjson.loads(body) == {"n": 7}
    assert headers.pop("Content-Type") == "application/json"
    structured = attributes(stored)
    del structured["datacontenttype"]
    assert {name: unquote(value) for name, value in headers.items()} == {
        f"ce-{name}": value for name, value in structured.items()
    }


def test_binary_headers_are_percent_encoded(event: Any) -> None:
    """Space, double quote, percent and what is not printable ASCII are encoded, by their UTF-8 bytes; nothing else is."""
    headers, _ = encode(event(trigger_id='a "b" 100% €\U0001f600~!'), "binary")
    assert headers["ce-trigger"] == "a%20%22b%22%20100%25%20%E2%82%AC%F0%9F%98%80~!"
    assert all(re.fullmatch(r"[!-~]+", value) for name, value in headers.items() if name != "Content-Type")


def test_an_event_without_a_stream_names_its_trigger(event: Any) -> None:
    """The source is a URI reference, whatever the trigger is called; there is no stream attribute then."""
    found = attributes(event(trigger_id="every morning", stream=None))
    assert found["source"] == "/headrace/triggers/every%20morning"
    assert "stream" not in found


@pytest.mark.parametrize("published_at", [1e18, -1e18, float("nan")])
def test_a_time_that_is_none_is_left_out(event: Any, published_at: float) -> None:
    """A publisher's impossible timestamp costs the optional attribute, not the event."""
    found = attributes(event(published_at=published_at))
    assert "time" not in found
    assert found["id"]


@pytest.mark.parametrize("payload", [None, "text", 1.5, [1, 2], {"ü": "€"}])
def test_any_json_payload_goes_through_both_modes(event: Any, payload: Any) -> None:
    """The receiver reads back the payload that was stored."""
    assert orjson.loads(encode(event(payload=payload), "structured")[1])["data"] == payload
    assert orjson.loads(encode(event(payload=payload), "binary")[1]) == payload
