"""The count at the end: what was expected, against what is in the store and what the webhook did.

Nothing that Headrace says about itself is believed: each stored event and each dead letter is read from the store, and told
by its trigger and the number of its order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from rich.table import Table

from headrace.app.demo.orders import Expected
from headrace.app.demo.receiver import Receiver, Work, order_number
from headrace.store import EventState, Store

PAGE = 1000


@dataclass(slots=True)
class Stored:
    """What is in the store."""

    identities: set[str] = field(default_factory=set)
    works: Counter[Work] = field(default_factory=Counter)
    delivered: int = 0
    rejected: Counter[int] = field(default_factory=Counter)
    other_dead_letters: int = 0
    seconds: list[float] = field(default_factory=list)
    """From published to stored, for each event."""

    @classmethod
    async def read(cls, store: Store) -> Stored:
        """Read every event and every dead letter."""
        found = cls()
        before: int | None = None
        while page := await store.events.find(limit=PAGE, before=before):
            for record in page:
                event = record.event
                before = event.id
                found.identities.add(event.identity)
                found.works[event.trigger_id, order_number(event.payload)] += 1
                found.delivered += record.state is EventState.DELIVERED
                if event.published_at is not None:
                    found.seconds.append(event.stored_at - event.published_at)
        before = None
        while letters := await store.dead_letters.find(limit=PAGE, before=before):
            for letter in letters:
                before = letter.id
                shown = await store.dead_letters.show(letter.id)
                number = dict(shown.message.headers).get("order") if shown and shown.message else None
                if letter.cause == "rejected" and number is not None:
                    found.rejected[int(number)] += 1
                else:
                    found.other_dead_letters += 1
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of the final table."""

    published: int
    read: int
    expected: int
    stored: int
    dispatched: int
    requests: int
    repeats: int
    rejected: int
    expected_rejected: int
    lost: int
    doubled: int
    unexpected: int
    exit_code: int
    p50: float
    p99: float

    @classmethod
    def of(cls, expected: Expected, stored: Stored, receiver: Receiver, *, published: int, read: int, exit_code: int) -> Report:
        works = {(trigger, number) for trigger, numbers in expected.derived.items() for number in numbers}
        in_store, done, rejected = stored.works, receiver.handled, stored.rejected
        never_stored = len(works - in_store.keys()) + len(expected.rejected - rejected.keys())
        never_handled = len((works & in_store.keys()) - done.keys())
        same_identity = in_store.total() - len(stored.identities)
        without_reason = len((in_store.keys() | done.keys()) - works) + len(rejected.keys() - expected.rejected)
        return cls(
            published=published,
            read=read,
            expected=len(works),
            stored=in_store.total(),
            dispatched=len(receiver.ids),
            requests=receiver.requests,
            repeats=receiver.repeats,
            rejected=rejected.total(),
            expected_rejected=len(expected.rejected),
            lost=never_stored + never_handled,
            doubled=_extra(in_store) + _extra(done) + _extra(rejected) + same_identity,
            unexpected=without_reason + stored.other_dead_letters + receiver.unreadable,
            exit_code=exit_code,
            p50=percentile(stored.seconds, 0.50),
            p99=percentile(stored.seconds, 0.99),
        )

    @property
    def is_good(self) -> bool:
        """Whether all is there, once, and nothing else, and `serve` stopped as it should."""
        return not (self.lost or self.doubled or self.unexpected or self.exit_code)

    def table(self) -> Table:
        """The figures, with what each of them means."""
        table = Table(title="what became of the orders", title_justify="left", show_header=False, box=None)
        table.add_column()
        table.add_column(justify="right", style="bold")
        table.add_column(style="dim")
        good, bad = "bold green", "bold red"

        def row(name: str, value: int | str, note: str = "", style: str = "bold") -> None:
            table.add_row(name, f"[{style}]{value:,}[/]" if isinstance(value, int) else value, note)

        row("published", self.published, "orders, to one stream that three triggers watch")
        row("read", self.read, "at least: with those handed out again after the kill")
        row("derived", self.expected, "events there must be, by the orders alone")
        row("stored", self.stored, "events in the store")
        row("dispatched", self.dispatched, f"events at the webhook, and {self.repeats:,} repeats it knew by their id")
        row("rejected", self.rejected, f"to the dead letters, of {self.expected_rejected:,} malformed orders")
        row("lost", self.lost, "not stored, not handled, or no dead letter", bad if self.lost else good)
        row("doubled", self.doubled, "stored or handled under more than one id", bad if self.doubled else good)
        if self.unexpected:
            row("unexpected", self.unexpected, "there is no reason for these", bad)
        if self.exit_code:
            row("exit code", self.exit_code, "of headrace serve after SIGTERM", bad)
        row("p50", _duration(self.p50), "from published to stored")
        row("p99", _duration(self.p99), "the same, with the kill and the restart in it")
        return table


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank); 0 where there are none."""
    return sorted(values)[max(ceil(share * len(values)) - 1, 0)] if values else 0.0


def _extra(counts: Counter[Any]) -> int:
    return counts.total() - len(counts)


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
