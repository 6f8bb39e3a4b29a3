"""Who may start how many calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.dispatch.slots import Slots

NAMES = ["a", "b", "c", "d"]


@given(
    shared=st.integers(0, 6),
    limits=st.fixed_dictionaries({name: st.integers(1, 5) for name in NAMES}),
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES))),
)
def test_slots_agree_with_counting(shared: int, limits: dict[str, int], steps: list[tuple[bool, str]]) -> None:
    """Whatever is taken and freed: no trigger has more than its limit, calls beyond each first are at most the shared number, an
    idle trigger may always start one, and a call that fits both bounds may always start."""
    slots, taken = Slots(shared), dict.fromkeys(NAMES, 0)
    slots.set_limits(limits)
    for take, name in steps:
        used = sum(max(0, n - 1) for n in taken.values())
        expected = min(limits[name] - taken[name], shared - used + (taken[name] == 0))
        assert slots.room(name) == max(0, expected)
        if take and slots.room(name):
            slots.take(name)
            taken[name] += 1
        elif not take and taken[name]:
            slots.free(name)
            taken[name] -= 1
        assert taken[name] <= limits[name]
        assert sum(max(0, n - 1) for n in taken.values()) <= shared
        assert all(slots.room(other) >= 1 for other in NAMES if taken[other] == 0)
        assert slots.taken == sum(taken.values())


@given(rooms=st.lists(st.integers(0, 100), max_size=20), served=st.sets(st.integers(0, 19)))
def test_groups_have_about_the_same_room(rooms: list[int], served: set[int]) -> None:
    """Every trigger with room is in one group; in a group the largest room is less than twice the smallest, and those that
    had events the last time are not with those that had none."""
    slots = Slots(10_000)
    slots.set_limits({str(n): room for n, room in enumerate(rooms)})
    last = {str(n) for n in served}
    groups = slots.groups((str(n) for n in range(len(rooms))), last)
    assert sorted(name for group in groups for name in group) == sorted(str(n) for n, room in enumerate(rooms) if room)
    for group in groups:
        found = [slots.room(name) for name in group]
        assert max(found) < 2 * min(found)
        assert len({name in last for name in group}) == 1


def test_limits_may_fall_below_what_is_taken() -> None:
    """A trigger whose limit shrinks, or that is gone, gets no more, and what it has is counted until it is freed."""
    slots = Slots(10)
    slots.set_limits({"a": 4, "b": 4})
    for _ in range(3):
        slots.take("a")
    slots.set_limits({"a": 2})
    assert (slots.room("a"), slots.room("b"), slots.taken) == (0, 0, 3)
    slots.free("a")
    slots.free("a")
    assert slots.room("a") == 1
