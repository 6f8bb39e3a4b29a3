"""Structured logs: JSON lines, or a readable console where somebody watches.

Every part of Headrace logs through structlog or the standard library; both come out here the same way, as one line each.
Payloads and secrets are in no event we log; where `log_payloads` is off, a key that would hold one is dropped all the same,
as a second fence. Every line of a delivery has its trigger, and its message or event: from the run that it is logged in, or
from structlog's context variables.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, Literal, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headrace.runner.identity import current_identity

PAYLOAD_KEYS: Final = frozenset({"payload", "payloads", "raw", "raw_event", "value", "body", "kwargs", "data"})
"""Keys of a log line that hold what users' messages hold."""

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]
"""`auto`: a console where somebody watches, else JSON."""


def configure_logs(
    *, log_payloads: bool = False, level: Level = "info", format: Format = "auto", stream: TextIO | None = None
) -> None:
    """Send everything that is logged in this process to `stream` (default: stderr). May be called again."""
    stream = stream or sys.stderr
    as_json = format == "json" or (format == "auto" and not stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _add_identity,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if not log_payloads:
        shared.append(_drop_payloads)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    if as_json:
        last: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_dumps)]
    else:
        last = [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("aiokafka", "asyncio", "alembic", "uvicorn.access", "uvicorn.error", "aiosqlite", "sqlalchemy"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def _add_identity(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for key, value in current_identity().items():
        event.setdefault(key, value)
    return event


def _drop_payloads(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    for key in PAYLOAD_KEYS & event.keys():
        del event[key]
    return event


def _dumps(value: Any, **options: Any) -> str:
    return orjson.dumps(value, default=options.get("default", str), option=orjson.OPT_NON_STR_KEYS).decode()
