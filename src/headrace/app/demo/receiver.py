"""The webhook that the demo's events go to. Like any receiver it tells repeats by the event's id, and does the work once."""

from __future__ import annotations

import socket
from collections import Counter

import orjson
from aiohttp import web

Work = tuple[str, int]
"""A trigger and the number of an order: what must be done once."""


class Receiver:
    """Counts what comes. `handled` counts the work done, which is once for each distinct id."""

    def __init__(self) -> None:
        self.requests = 0
        self.unreadable = 0
        self.ids: set[str] = set()
        self.handled: Counter[Work] = Counter()
        self._runner = web.ServerRunner(web.Server(self._receive, access_log=None), shutdown_timeout=1.0)
        self.url = ""

    @property
    def repeats(self) -> int:
        """Requests with an id that came before: an answer was lost, in the kill for example, and the event was sent again."""
        return self.requests - self.unreadable - len(self.ids)

    async def start(self) -> None:
        """Listen on a free port of this machine."""
        await self._runner.setup()
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        await web.SockSite(self._runner, listener).start()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        try:
            event = orjson.loads(await request.read())
            event_id, work = event["id"], (event["trigger"], order_number(event["data"]))
        except (ValueError, KeyError, TypeError):
            self.unreadable += 1
            return web.Response(status=400)
        if event_id not in self.ids:
            self.ids.add(event_id)
            self.handled[work] += 1
        return web.Response(status=204)


def order_number(payload: object) -> int:
    """The number of the order that a payload was derived from. Raises `ValueError` where it says none."""
    value = payload.get("value", payload) if isinstance(payload, dict) else None
    number = value.get("order") if isinstance(value, dict) else None
    if not isinstance(number, int):
        raise ValueError("the payload has no order number")
    return number
