"""How long Hypothesis looks: `short` in every run, the same histories each time; `soak` by HYPOTHESIS_PROFILE=soak."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "short",
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
