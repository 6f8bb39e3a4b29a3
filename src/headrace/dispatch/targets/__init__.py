"""Where events go. `TARGETS` has each kind's config schema and how it is built; a config's `target: {kind: {...}}` picks one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headrace.dispatch.targets.base import Target, TargetConfig
from headrace.dispatch.targets.callable import CallableConfig, CallableTarget
from headrace.dispatch.targets.log import LogConfig, LogTarget
from headrace.dispatch.targets.webhook import WebhookConfig, WebhookTarget

__all__ = ["TARGETS", "Target", "TargetConfig", "TargetContext", "TargetKind"]


@dataclass(frozen=True, slots=True)
class TargetContext:
    """What a target may want to know besides its own config."""

    log_payloads: bool = False


class TargetKind(NamedTuple):
    """A kind of target. `build` connects to nothing; it raises `ConfigError` for what only building can find."""

    config: type[TargetConfig]
    build: Callable[[Any, TargetContext], Target]


TARGETS: Final[Mapping[str, TargetKind]] = {
    "webhook": TargetKind(WebhookConfig, lambda config, context: WebhookTarget(config)),
    "callable": TargetKind(CallableConfig, lambda config, context: CallableTarget(config)),
    "log": TargetKind(LogConfig, lambda config, context: LogTarget(config, log_payloads=context.log_payloads)),
}
