"""What the dispatcher tells whoever counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

Outcome = Literal["delivered", "retry", "dead", "lost"]
"""What became of one try: `lost` is a claim that another replica took over, or that could not be proven to hold any more."""


class DispatchObserver:
    """Override what you want to know; called on the dispatcher's loop, so return at once and do not raise."""

    def attempted(self, trigger_id: str, kind: str, outcome: Outcome, seconds: float) -> None:
        """A try has ended, and the store knows it (unless `lost`). `kind` is the target's; `seconds` is the call alone."""

    def released(self, count: int) -> None:
        """So many claims were given back untried, or broken off, at a stop."""

    def untargeted(self, trigger_ids: Collection[str]) -> None:
        """These triggers have events that wait and no target in the config. Called when that changes."""
