"""What every target is: it takes one stored event at a time and says how that went.

The dispatcher enforces what stands in a target's `TargetConfig` (time, concurrency, attempts); a target only delivers.
Read next: `webhook.py`, and `dispatcher.py` for the other half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from headrace.store import StoredEvent

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TargetConfig(BaseModel):
    """What all targets have in common. Durations are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)

    timeout: PositiveSeconds = 10.0
    """How long one call may take; it must be shorter than the dispatcher's lease."""
    max_concurrency: Annotated[int, Field(ge=1)] = 64
    """Calls of this target that run at once, in each replica."""
    max_attempts: Annotated[int, Field(ge=1)] = 20
    """Calls until an event is dead. With the backoff from 1 s to 1 h, 20 bear an outage of about eight hours."""
    max_age: PositiveSeconds | None = None
    """An event that is older when it is first taken up is dead unsent. Its age is that of the message it was derived from, where
    the broker gave a time, else since it was stored. Default: no limit."""


class Target(ABC):
    """Where a trigger's events go. One instance serves one trigger and takes many calls at once, all on the dispatcher's loop."""

    kind: ClassVar[str]
    """The word under `target:` in a config."""

    def __init__(self, config: TargetConfig | None = None) -> None:
        self.config = config or TargetConfig()

    @abstractmethod
    async def deliver(self, event: StoredEvent) -> str | None:
        """Hand the event over, and return when the other side has it. Returns a short answer to be kept with the attempt.

        Raises `TargetError` to be called again later (after its `retry_after` at the earliest), `TargetRejected` when that is of
        no use. Any other exception is treated as `TargetError`. The messages are stored: no secrets. The call is cancelled
        after `config.timeout`, and when the claim on the event is lost; the same event then comes again, so whoever
        receives it tells repeats by `event.identity`.
        """

    async def aclose(self) -> None:  # most targets hold nothing
        """Release what deliveries opened. Called once, when no call runs any more."""
