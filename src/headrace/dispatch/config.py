"""How the dispatcher is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from headrace.dispatch.targets.base import PositiveSeconds, TargetConfig


class DispatchConfig(BaseModel):
    """How stored events are taken to their targets. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_concurrency: Annotated[int, Field(ge=0)] = 256
    """Calls that run at once in this replica, beyond the first of each trigger, which is always its own."""
    lease_seconds: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 30.0
    """How long an event stays claimed by a replica that died, until another takes it up."""
    poll_interval: PositiveSeconds = 1.0
    """How often to look for other replicas' events and for retries that are due."""
    retry_first: PositiveSeconds = 1.0
    """The wait after the first failed attempt; it doubles with each."""
    retry_longest: PositiveSeconds = 3600.0
    """The longest wait, also for a target that asks for a longer one."""

    def problems(self, targets: Mapping[str, TargetConfig]) -> list[str]:
        """What does not fit between these settings and the targets of the triggers, a line each."""
        return [
            f"triggers.{trigger_id}.target: its timeout of {target.timeout:g} s must be shorter than the dispatcher's "
            f"lease_seconds, {self.lease_seconds:g}"
            for trigger_id, target in targets.items()
            if target.timeout >= self.lease_seconds
        ]
