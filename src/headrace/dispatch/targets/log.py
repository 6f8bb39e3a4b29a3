"""The `log` target: one structured log line an event."""

from __future__ import annotations

from typing import ClassVar, Literal

import structlog

from headrace.dispatch.targets.base import Target, TargetConfig
from headrace.store import StoredEvent

logger = structlog.stdlib.get_logger("headrace.target.log")


class LogConfig(TargetConfig):
    """Write each event to Headrace's own log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The level of the lines."""


class LogTarget(Target):
    """Never fails. The payload is in the line only where `log_payloads` is on."""

    kind: ClassVar[str] = "log"

    def __init__(self, config: LogConfig, *, log_payloads: bool = False) -> None:
        super().__init__(config)
        self._level = config.level
        self._log_payloads = log_payloads

    async def deliver(self, event: StoredEvent) -> None:
        shown = {"payload": event.payload} if self._log_payloads else {}
        getattr(logger, self._level)("event", event_id=event.identity, trigger=event.trigger_id, stream=event.stream, **shown)
