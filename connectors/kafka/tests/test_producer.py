from __future__ import annotations

import pytest

pytestmark = pytest.mark.integration


async def test_messages_come_in_order_and_are_committed(cluster):
    """What is published comes once, in order, and a restart goes on behind what was settled."""
    config = cluster.config(cluster.topic())
    await cluster.publish(config.topics[0], [b"%d" % n for n in range(10)])
    driven = cluster.open(config)
    messages = await driven.next(10)
    assert [message.value for message in messages] == [b"%d" % n for n in range(10)]
    assert [message.offset for message in messages] == list(range(10))
    await driven.advance(messages[:7])
    assert await cluster.committed(config) == 7
    await driven.close()
    again = cluster.open(config)
    assert [message.value for message in await again.next(3)] == [b"7", b"8", b"9"]
