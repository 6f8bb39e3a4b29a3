"""Orders to publish, and what each trigger must derive from them.

The expectation follows from how an order was made, not from reading it: it shares no code with what is being shown. An
order's number travels in a header, so that a malformed one can be told from the others too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from headrace.app.messages import new_message
from headrace.connector import Message

NUMBER_HEADER: Final = "order"
CUSTOMERS: Final = 64
"""Keys, and so lanes."""
MALFORMED: Final = 0.01
"""The share of orders that nobody can ship."""


@dataclass(slots=True)
class Expected:
    """What must be there at the end: the numbers of the orders that each trigger derives an event from, or rejects."""

    derived: Mapping[str, set[int]] = field(
        default_factory=lambda: {"large-eu-orders": set(), "express-shipping": set(), "audit": set()}
    )
    rejected: set[int] = field(default_factory=set)

    @property
    def events(self) -> int:
        """Derived events over all triggers."""
        return sum(map(len, self.derived.values()))


def make_orders(count: int, seed: int, expected: Expected) -> Iterator[Message]:
    """Make orders 1 to `count`, and note in `expected` what must come of each."""
    chance = random.Random(seed)
    for number in range(1, count + 1):
        region = chance.choice(("eu", "us", "apac"))
        amount = chance.choice((chance.randrange(5, 100), chance.randrange(101, 900)))
        express = chance.random() < 0.2
        order = {"order": number, "region": region, "amount": amount, "express": express, "items": [f"sku-{number:06}"]}
        value = orjson.dumps(order)
        expected.derived["audit"].add(number)
        if chance.random() < MALFORMED:
            value = chance.choice((value[:-9], orjson.dumps(order | {"amount": "a lot"}), b"\xff\xfe"))
            expected.rejected.add(number)
        else:
            if region == "eu" and amount > 100:
                expected.derived["large-eu-orders"].add(number)
            if express:
                expected.derived["express-shipping"].add(number)
        headers = ((NUMBER_HEADER, str(number).encode()),)
        yield new_message(value, b"customer-%d" % chance.randrange(CUSTOMERS), headers)
