"""What became of a lane's next events, and what follows for the partition.

Mixed outcomes, as everywhere in Headrace: any `failed`, or nobody there, keeps the message for redelivery, and its rejections
wait; else any `rejected` makes it a dead letter, then it is settled; else it is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace import AdvanceItem, AdvanceOutcome
from headrace_kafka.lanes import Run
from headrace_kafka.message import KafkaMessage


@dataclass(slots=True)
class Verdict:
    """What to do for one `advance` call, in this order: dead-letter, commit, go back."""

    settled: int | None = None
    """The last offset of those that are done with; None for none."""
    failed: int | None = None
    """The offset to go back to; None for none. What is behind it is not looked at."""
    rejected: list[tuple[KafkaMessage, AdvanceOutcome]] = field(default_factory=list)
    """The settled ones that somebody refused."""
    stale: int = 0
    """Events of an ended run."""


def judge(batch: Sequence[AdvanceItem], run: Run) -> Verdict:
    """Read a lane's outcomes, in the order of delivery. Events of another run than `run` are counted, and ignored."""
    verdict = Verdict()
    known_clean: AdvanceOutcome | None = None  # the engine shares one outcome among many events
    message: KafkaMessage | None = None
    settled: KafkaMessage | None = None
    for message, outcome in batch:
        if message.run is not run:
            verdict.stale += 1
            continue
        if outcome is not known_clean:
            if outcome.is_clean:
                known_clean = outcome
            elif outcome.failed or not outcome.rejected:
                verdict.failed = message.offset
                break
            else:
                verdict.rejected.append((message, outcome))
        settled = message
    verdict.settled = None if settled is None else settled.offset
    return verdict
