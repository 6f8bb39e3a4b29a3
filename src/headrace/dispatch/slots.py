"""Who may start how many calls: pure bookkeeping.

A trigger has at most its target's `max_concurrency` calls. Its first call is its own; the others come out of a share that
all triggers have in common. So targets that hang can use up the share, and still every other trigger has a call of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping


class Slots:
    """Counts calls by trigger. `shared`: calls beyond each trigger's first, over all triggers."""

    def __init__(self, shared: int) -> None:
        self._free = shared
        self._limits: Mapping[str, int] = {}
        self._taken: dict[str, int] = {}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """The most calls of each trigger; one that is not named gets no more. What is taken stays taken until it is freed."""
        self._limits = limits

    def take(self, trigger_id: str) -> None:
        taken = self._taken.get(trigger_id, 0)
        self._taken[trigger_id] = taken + 1
        if taken:
            self._free -= 1

    def free(self, trigger_id: str) -> None:
        left = self._taken[trigger_id] - 1
        if left:
            self._taken[trigger_id] = left
            self._free += 1
        else:
            del self._taken[trigger_id]

    @property
    def taken(self) -> int:
        return sum(self._taken.values())

    def room(self, trigger_id: str) -> int:
        """How many calls this trigger may start now, if no other does."""
        taken = self._taken.get(trigger_id, 0)
        return max(0, min(self._limits.get(trigger_id, 0) - taken, self._free + (0 if taken else 1)))

    def groups(self, trigger_ids: Iterable[str], last: Collection[str] = ()) -> list[list[str]]:
        """The triggers that may start calls, in groups to claim for, the one with the most room first.

        A claim takes the oldest events of a group, whosever they are, and no more than the smallest room in it: so triggers
        with about as much room (less than twice) are together. Those that had events the `last` time are apart, or a long
        backlog would be served to its end before the fresh event of a trigger beside it.
        """
        found: dict[tuple[int, bool], list[str]] = {}
        for trigger_id in trigger_ids:
            if room := self.room(trigger_id):
                found.setdefault((-room.bit_length(), trigger_id in last), []).append(trigger_id)
        return [found[key] for key in sorted(found)]
