"""The kinds of targets, and the smallest of them."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.dispatch import TARGETS, TargetConfig, TargetContext


@pytest.mark.parametrize(
    ("kind", "config"),
    [("webhook", {"url": "http://localhost/"}), ("callable", {"function": "builtins:print"}), ("log", {})],
)
def test_every_kind_is_built_from_its_own_schema(kind: str, config: dict[str, Any]) -> None:
    """The name, the schema and the target belong together; building connects to nothing."""
    schema, build = TARGETS[kind]
    target = build(schema(**config), TargetContext())
    assert target.kind == kind
    assert isinstance(target.config, TargetConfig)
    assert schema.model_json_schema()["properties"]["max_attempts"]["description"]


@pytest.mark.parametrize("shown", [True, False])
async def test_log_shows_a_payload_only_where_asked(event: Any, shown: bool) -> None:
    """One line an event, at the configured level, with its identity; the payload needs `log_payloads`."""
    schema, build = TARGETS["log"]
    target = build(schema(level="warning"), TargetContext(log_payloads=shown))
    with capture_logs() as lines:
        await target.deliver(event(4))
    [line] = lines
    assert (line["log_level"], line["event_id"], line["trigger"]) == ("warning", "eu-orders:orders/0/4/0:0", "eu-orders")
    assert line.get("payload") == ({"n": 4} if shown else None)
