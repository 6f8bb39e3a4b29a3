"""From the outbox to the targets: `Dispatcher` claims stored events and delivers them; `targets` are where they go."""

from headrace.dispatch.config import DispatchConfig
from headrace.dispatch.dispatcher import Dispatcher, DispatchStatus
from headrace.dispatch.observer import DispatchObserver, Outcome
from headrace.dispatch.targets import TARGETS, Target, TargetConfig, TargetContext, TargetKind

__all__ = [
    "TARGETS",
    "DispatchConfig",
    "DispatchObserver",
    "DispatchStatus",
    "Dispatcher",
    "Outcome",
    "Target",
    "TargetConfig",
    "TargetContext",
    "TargetKind",
]
