"""Two of the demo's triggers; the third is a pattern in its configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from headrace import BaseEventTrigger, Message, TriggerEvent, reject_shared_stream_event
from headrace.app.demo.orders import NUMBER_HEADER


class ExpressShipping(BaseEventTrigger):
    """Derives a parcel from each express order, and rejects what is no order."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("headrace.app.demo.filters.ExpressShipping", {})

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            try:
                order = message.json()
            except ValueError:
                reject_shared_stream_event("not JSON")
                continue
            if not isinstance(order, dict) or not isinstance(order.get("amount"), (int, float)):
                reject_shared_stream_event("an order has an amount")
            elif order["express"]:
                yield TriggerEvent({"order": order["order"], "parcel": order["items"]})


class Audit(BaseEventTrigger):
    """Derives a record from every message, well-formed or not."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("headrace.app.demo.filters.Audit", {})

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Message]) -> AsyncIterator[TriggerEvent]:
        async for message in shared_stream:
            number = int(dict(message.headers)[NUMBER_HEADER] or 0)
            yield TriggerEvent({"order": number, "bytes": message.byte_size})
