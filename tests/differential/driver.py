"""Plays histories on a shared-stream manager and prints what became of each event, as JSON. Runs in two worlds.

`python driver.py airflow|headrace VIRTUAL_TIME_MODULE < histories.json`. The trigger and the producer are written for Airflow's
base classes; only their imports differ from one world to the other. Time is virtual, so a history runs the same each time.

A history is a list of steps: subscribe, feed (event, lane), pull, derive, confirm, reject, leave, crash (leave as the runner of
each world does when a filter raised), refuse (the store says no), sleep, finish (pull and confirm all that is left). Each
subscriber pulls in a task of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
from typing import Any, ClassVar

WORLD = sys.argv[1]
if WORLD == "airflow":
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
    from airflow.triggers.shared_stream import SharedStreamManager, SharedStreamProducer, reject_shared_stream_event
else:
    from headrace import (
        BaseEventTrigger,
        SharedStreamManager,
        SharedStreamProducer,
        TriggerEvent,
        reject_shared_stream_event,
    )

KEY = ("shared", "stream")
TURNS = 12


class Producer(SharedStreamProducer):
    """Hands out what it is fed, one event at a time, each with its lane and its name for the payload."""

    def __init__(self, world: Play) -> None:
        self.world = world

    async def open_stream(self):
        while True:
            event = await self.world.source.get()
            if event == "raise":
                raise ValueError("the source is broken")
            if event == "return":
                return
            yield event["event"], event

    async def advance(self, batch) -> None:
        self.world.calls.append(
            [
                [
                    item.broker_payload["event"],
                    item.broker_payload["lane"],
                    item.outcome.acked,
                    item.outcome.failed,
                    item.outcome.rejected,
                    item.outcome.is_clean,
                ]
                for item in batch
            ]
        )

    def get_advance_lane(self, broker_payload):
        return broker_payload["lane"]

    async def aclose(self) -> None:
        self.world.closed += 1


class Trigger(BaseEventTrigger):
    """Fires what its subscriber's script says; the script is the history."""

    worlds: ClassVar[dict[int, Play]] = {}

    def __init__(self, world: int, name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "driver.Trigger", {"world": self.world, "name": self.name}

    def shared_stream_key(self):
        return KEY

    @classmethod
    def create_shared_stream_producer(cls, kwargs):
        return Producer(cls.worlds[kwargs["world"]])

    async def filter_shared_stream(self, shared_stream):
        subscriber = self.worlds[self.world].subscribers[self.name]
        async for event in shared_stream:
            subscriber.seen.append(event)
            while (order := await subscriber.orders.get()) != "pull":
                if order == "reject":
                    reject_shared_stream_event()
                else:
                    yield TriggerEvent({"event": event, "order": order})

    async def run(self):
        yield TriggerEvent(None)


class Subscriber:
    def __init__(self, play: Play, name: str) -> None:
        self.play = play
        self.name = name
        self.seen: list[Any] = []
        self.writes: list[int] = []
        self.orders: asyncio.Queue[str] = asyncio.Queue()
        self.error: str | None = None
        # a new id each time: in Airflow a timeout of an id's new life also fails what its old one left unconfirmed
        self.id = f"{name}{len(play.left)}"
        trigger = Trigger(play.number, name)
        play.subscribers[name] = self
        self.stream = play.manager.subscribe(trigger_id=self.id, trigger=trigger, key=KEY)
        self.trigger = trigger
        self.task = asyncio.create_task(self.drive())

    async def drive(self) -> None:
        if await self.orders.get() != "pull":
            return
        try:
            async for _ in self.trigger.filter_shared_stream(self.stream):
                write = self.play.manager.bind_pending_event(trigger_id=self.id, key=KEY)
                if write is not None:
                    self.writes.append(write)
        except Exception as error:
            self.error = type(error).__name__.lstrip("_").replace("PollTerminated", "StreamEnded")


class Play:
    def __init__(self, number: int, settings: dict[str, Any]) -> None:
        self.number = number
        self.source: asyncio.Queue[Any] = asyncio.Queue()
        self.calls: list[Any] = []
        self.closed = 0
        self.subscribers: dict[str, Subscriber] = {}
        self.left: list[Subscriber] = []
        Trigger.worlds[number] = self
        if WORLD == "airflow":
            settings = {**settings, "_now": asyncio.get_running_loop().time}
        else:
            settings = {**settings, "overflow_grace": 0}  # Airflow's behaviour
        self.manager = SharedStreamManager(log=logging.getLogger("world"), **settings)

    async def step(self, step: dict[str, Any]) -> None:
        kind, name = step["do"], step.get("name")
        subscriber = self.subscribers.get(name) if name else None
        if kind == "subscribe":
            if subscriber is None:
                Subscriber(self, name)
        elif kind == "feed":
            self.source.put_nowait(step["payload"])
        elif kind == "sleep":
            await asyncio.sleep(step["seconds"])
        elif subscriber is None:
            return
        elif kind in ("pull", "derive", "reject"):
            subscriber.orders.put_nowait(kind)
        elif kind == "finish":
            for _ in range(40):
                subscriber.orders.put_nowait("pull")
                await asyncio.sleep(0)
            self.manager.confirm_persisted(subscriber.writes)
        elif kind == "confirm" and subscriber.writes:
            self.manager.confirm_persisted([subscriber.writes.pop(step["which"] % len(subscriber.writes))])
        elif kind == "refuse" and subscriber.writes and WORLD == "headrace":
            self.manager.persist_failed([subscriber.writes.pop()])
        elif kind in ("leave", "crash"):
            await self.leave(subscriber, crashed=kind == "crash")

    async def leave(self, subscriber: Subscriber, *, crashed: bool) -> None:
        self.left.append(self.subscribers.pop(subscriber.name))
        subscriber.task.cancel()
        await asyncio.wait([subscriber.task])
        if WORLD == "headrace" and crashed:
            await self.manager.unsubscribe(subscriber.id, KEY, abandon=True)
        else:
            await self.manager.unsubscribe(subscriber.id, KEY)


async def play(number: int, history: dict[str, Any]) -> dict[str, Any]:
    world = Play(number, history.get("settings", {}))
    for step in history["steps"]:
        await world.step(step)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    everyone = [*world.left, *world.subscribers.values()]
    for subscriber in everyone:
        subscriber.task.cancel()
    await asyncio.gather(*(subscriber.task for subscriber in everyone), return_exceptions=True)
    seen = [[subscriber.name, subscriber.seen, subscriber.error] for subscriber in everyone]
    await world.manager.stop_all()
    return {"calls": world.calls, "subscribers": seen, "closed": world.closed}


def main() -> None:
    logging.disable(logging.CRITICAL)
    spec = importlib.util.spec_from_file_location("virtual_time", sys.argv[2])
    assert spec is not None
    assert spec.loader is not None
    virtual_time = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(virtual_time)
    histories = json.load(sys.stdin)
    results = [virtual_time.run_virtual(play(number, history)) for number, history in enumerate(histories)]
    print("\nRESULTS", json.dumps(results))  # Airflow logs to the same place


if __name__ == "__main__":
    main()
