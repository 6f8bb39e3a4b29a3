"""Which trigger and message a piece of code is busy with: asked when a log line is written, so it costs nothing per event.

A trigger's code, and whatever it calls, runs in a context that knows its run; that of a stream knows the event in hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

ask_identity: ContextVar[Callable[[], Mapping[str, str]]] = ContextVar("headrace_identity")


def current_identity() -> Mapping[str, str]:
    """`trigger`, `stream` and `message` of what runs here, as far as there are any; empty outside of every trigger."""
    ask = ask_identity.get(None)
    return ask() if ask is not None else {}
