"""A Hypothesis state machine that drives a whole stream in virtual time, under the eyes of the `World`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Hashable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace import UNORDERED
from headrace.testing.virtual_time import VirtualTimeLoop
from tests.model.scripted import Raw
from tests.model.world import Bounds, World

LANES: list[Hashable] = ["x", "y", UNORDERED]
PICK = st.integers(0, 4)
WANTS = st.sampled_from([None, None, None, {0}, {0, 1}])
STYLES = st.sampled_from(["for", "for", "anext", "wait_for", "wait_for aiter"])
NAMES = st.sampled_from(["a", "b", "c", "d"])
EVENTS = st.lists(st.tuples(st.sampled_from(LANES), st.sampled_from([0, 1]), st.integers(1, 60)), min_size=1, max_size=6)
SCRIPT = st.lists(
    st.sampled_from(
        (
            "derive", "derive", "derive, confirm", "derive, confirm later", "derive, refuse", "reject", "raise", "turn", "turn",
            "short", "long", "too long",
        )
    ),
    max_size=3,
)  # fmt: skip
RARE = st.sampled_from(
    (
        "lose x", "lose x", "lose y", "lose UNORDERED", "store goes", "store comes", "source raises", "source returns", "stop",
        "closing is slow", "closing hangs", "fatal",
    )
)  # fmt: skip
TROUBLES = ["slow", "slow", "hangs", "hangs, and raises when cancelled", "unavailable", "unavailable"]
BOUNDS = st.builds(
    Bounds,
    ordered=st.booleans(),
    one_by_one=st.sampled_from([False, False, True]),
    parallel=st.sampled_from([1, 1, 2, 3]),
    queue=st.sampled_from([1, 3, 6, 20]),
    in_flight=st.sampled_from([2, 8, 30]),
    in_flight_bytes=st.sampled_from([100, 300, 10_000]),
    queue_timeout=st.sampled_from([None, 5.0]),
    grace=st.sampled_from([0.0, 0.0, 3.0]),
    overflow_grace=st.sampled_from([0.0, 2.0, 2.0]),
)


async def idle(loop: asyncio.AbstractEventLoop) -> None:
    """Let everything run that can, without time passing."""
    for _ in range(5000):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]  # what asyncio would run next
            return
    raise AssertionError("the loop never comes to rest")


class StreamMachine(RuleBasedStateMachine):
    """Rules are what may happen around a stream; after each everything that can happen at that moment does, and is checked."""

    @initialize(bounds=BOUNDS, first=st.lists(st.tuples(STYLES, WANTS), min_size=1, max_size=3), expects=st.booleans())
    def start(self, bounds: Bounds, first: list[tuple[str, set[int] | None]], expects: bool) -> None:
        logging.disable(logging.CRITICAL)
        self.loop = VirtualTimeLoop(limit=1e9)
        self.names = 0
        self.stops: list[asyncio.Task[None]] = []
        self.expects = {"a", "b", "c", "d"} if expects else None
        self.run(self._start(bounds, first))

    async def _start(self, bounds: Bounds, first: list[tuple[str, set[int] | None]]) -> None:
        self.world = World(bounds)
        for name, (style, wants) in zip("abcd", first, strict=False):
            self.world.join(name, style, wants, self.expects)

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(self._run(step))

    async def _run(self, step: Coroutine[Any, Any, None]) -> None:
        await step
        await idle(self.loop)
        self.world.check()

    # -- rules

    @rule(events=EVENTS)
    def feed(self, events: list[tuple[Hashable, int, int]]) -> None:
        self.run(self._feed(events))

    @rule(events=EVENTS)
    def feed_more(self, events: list[tuple[Hashable, int, int]]) -> None:
        """The same again: most of what happens is events that come."""
        self.run(self._feed(events))

    async def _feed(self, events: list[tuple[Hashable, int, int]]) -> None:
        batch = []
        for lane, kind, size in events:
            batch.append(Raw(name=self.names, lane=lane, kind=kind, size=size))
            self.names += 1
        self.world.feed(batch)

    @rule(pick=PICK, scripts=st.lists(SCRIPT, min_size=1, max_size=4), events=EVENTS)
    @precondition(lambda self: self.world.actors)
    def handle(self, pick: int, scripts: list[list[str]], events: list[tuple[Hashable, int, int]]) -> None:
        """What a filter does with the next events, and events for it."""
        self.world.actors[pick % len(self.world.actors)].scripts.extend(scripts)
        self.run(self._feed(events))

    @rule(picks=st.lists(st.integers(0, 12), max_size=4), refused=st.lists(st.integers(0, 12), max_size=1))
    @precondition(lambda self: self.world.write_ids)
    def store_answers(self, picks: list[int], refused: list[int]) -> None:
        self.run(self._store_answers(picks, refused))

    async def _store_answers(self, picks: list[int], refused: list[int]) -> None:
        ids = self.world.write_ids
        self.world.confirm([ids[-1 - pick % len(ids)] for pick in picks])
        self.world.refuse([ids[-1 - pick % len(ids)] for pick in refused])

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 1.5, 3.0, 6.0, 13.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(troubles=st.lists(st.sampled_from(TROUBLES), min_size=1, max_size=4))
    def trouble(self, troubles: list[str]) -> None:
        self.world.troubles.extend(troubles)

    @rule(
        what=st.sampled_from(["join", "join", "leave", "abandon", "drop pull"]), pick=PICK, name=NAMES, style=STYLES, wants=WANTS
    )
    def membership(self, what: str, pick: int, name: str, style: str, wants: set[int] | None) -> None:
        self.run(self._membership(what, pick, name, style, wants))

    async def _membership(self, what: str, pick: int, name: str, style: str, wants: set[int] | None) -> None:
        world = self.world
        if what == "join":
            for gone in [actor for actor in world.actors if actor.member.id == name and actor.member in world.told]:
                await world.leave(gone, abandon=True)
            if all(actor.member.id != name for actor in world.actors):
                world.join(name, style, wants, self.expects)
        elif world.actors:
            actor = world.actors[pick % len(world.actors)]
            if what == "drop pull":
                if actor.has_parked and actor.is_asking:
                    actor.drops_pull = True
                    actor.task.cancel()
            else:
                await world.leave(actor, abandon=what == "abandon")

    @rule(what=RARE)
    def rare(self, what: str) -> None:
        self.run(self._rare(what))

    async def _rare(self, what: str) -> None:
        world = self.world
        if what.startswith("lose "):
            world.lose_lane(UNORDERED if what == "lose UNORDERED" else what[-1])
        elif what.startswith("store"):
            world.store_available(what == "store comes")
        elif what == "source raises":
            world.end_source(ValueError("the source broke"))
        elif what == "source returns":
            world.end_source(None)
        elif what == "fatal":
            world.troubles.append("fatal")
        elif what.startswith("closing"):
            world.closing = what.removeprefix("closing is ").removeprefix("closing ")
        else:
            self.stops.append(self.loop.create_task(world.stop()))

    # -- the end

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            if sys.exception() is None and hasattr(self, "world"):
                self.run(self._finish())
        finally:
            self.give_up()

    async def _finish(self) -> None:
        """After a stop nothing is left, of the stream or of its tasks."""
        world = self.world
        await world.stop()
        await idle(self.loop)
        for actor in world.actors:
            actor.task.cancel()
        await asyncio.gather(*(actor.task for actor in world.actors), *self.stops, return_exceptions=True)
        await idle(self.loop)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        for life in world.lives:
            if life.source is not None:
                assert life.source.closed == 1
                assert not life.source.is_open

    def give_up(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=100))
        self.loop.close()
        logging.disable(logging.NOTSET)

    @invariant()
    def holds(self) -> None:
        """What there is to check is checked in each step, inside the loop."""
