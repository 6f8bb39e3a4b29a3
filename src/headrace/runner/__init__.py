"""The runner: runs triggers on their streams, stores what they derive, confirms it to the engine, and starts again what failed.

`Runner` is all that others need, with its specs; `HostedProducer` keeps a producer in a thread of its own.
"""

from headrace.runner.hosting import HostedProducer
from headrace.runner.observer import Observer
from headrace.runner.runner import Runner
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.runner.status import RunnerStatus, StreamStatus, TriggerStatus
from headrace.runner.supervision import Phase

__all__ = [
    "HostedProducer",
    "Observer",
    "Phase",
    "Runner",
    "RunnerStatus",
    "StreamSpec",
    "StreamStatus",
    "TriggerSpec",
    "TriggerStatus",
]
