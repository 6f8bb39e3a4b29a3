"""How long a failed delivery waits before it is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first` to `longest` seconds, each spread by ±25 % so that what failed together does not return together.

    A target's own `retry_after` is a minimum: it makes a wait longer, never shorter (a target that says 0 each time would be
    called in a hot loop), and is cut at `longest`, since a mistaken date must not park an event for years.
    """

    first: float = 1.0
    longest: float = 3600.0
    rng: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delay(self, attempt: int, retry_after: float | None = None) -> float:
        """Seconds to wait after the failed attempt number `attempt`, counted from 1."""
        doubled = self.first * 2.0 ** min(attempt - 1, 60)  # beyond 60 the power overflows a useful float long after the cut
        wait = min(doubled, self.longest) * self.rng.uniform(0.75, 1.25)
        return max(wait, min(retry_after or 0.0, self.longest))
