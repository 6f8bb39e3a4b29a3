"""What is promised of a figure, and how a measured one stands beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Goal:
    """`more` is better for a speed-up, `less` for a time or a size. `unit` is written behind each figure."""

    what: str
    least: float
    stretch: float
    unit: str = "x"
    better: Literal["more", "less"] = "more"

    def is_met(self, value: float, bound: float) -> bool:
        return value >= bound if self.better == "more" else value <= bound

    def written(self, value: float) -> str:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
        text = f"{value:,.{digits}f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text) + self.unit


@dataclass(frozen=True)
class Measured:
    """A figure beside its goal; `detail` are the absolute figures behind it, for this machine and this run only."""

    goal: Goal
    value: float
    detail: str = ""

    @property
    def verdict(self) -> str:
        if not self.goal.is_met(self.value, self.goal.least):
            return "NOT MET"
        return "stretch" if self.goal.is_met(self.value, self.goal.stretch) else "met"

    @property
    def cells(self) -> tuple[str, str, str, str, str, str]:
        goal = self.goal
        sign = "≥" if goal.better == "more" else "≤"
        return (
            goal.what,
            f"{sign} {goal.written(goal.least)}",
            goal.written(goal.stretch),
            goal.written(self.value),
            self.verdict,
            self.detail,
        )


@dataclass
class Report:
    """What one part of the benchmarks found, and what it could not measure, with the reason."""

    part: str
    rows: list[Measured] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, goal: Goal, value: float, detail: str = "") -> None:
        self.rows.append(Measured(goal, value, detail))
