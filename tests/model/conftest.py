"""How far Hypothesis looks: `short` in every run, the same histories each time; `soak` in the tests marked so, or everywhere by
HYPOTHESIS_PROFILE=soak, each time others."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "short",
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
settings.register_profile("soak", settings.get_profile("short"), max_examples=3000, stateful_step_count=80, derandomize=False)
