"""All streams of a runner: those of the config, those that triggers bring themselves, and who belongs to which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator

from headrace.runner.source import MakeProducer, Source, acknowledges, of_config, of_trigger
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.streams.stream import StreamSettings
from headrace.triggers.base import BaseEventTrigger

OpenSource = Callable[..., Source]
"""`Source`, given all but its name, key, producer, mode and settings."""


class Sources:
    """`is_wanted` says whether a trigger should be running; `defaults` are the settings of streams that triggers bring."""

    def __init__(self, open_source: OpenSource, is_wanted: Callable[[str], bool], defaults: StreamSettings) -> None:
        self._open_source = open_source
        self._is_wanted = is_wanted
        self._defaults = defaults
        self._of_config: dict[str, Source] = {}
        self._of_triggers: dict[Hashable, Source] = {}
        self._members: dict[str, Source] = {}
        self._left: list[tuple[str, Source]] = []
        """Former members, still expected by their stream."""

    def __iter__(self) -> Iterator[Source]:
        yield from self._of_config.values()
        yield from self._of_triggers.values()

    def open(self, specs: Iterable[StreamSpec]) -> None:
        """Have a source for each of these, where there is none by its name."""
        for spec in specs:
            if spec.name not in self._of_config:
                self._of_config[spec.name] = self._open(
                    spec.name, spec.name, of_config(spec.create_producer), acknowledge=spec.acknowledge, settings=spec.settings
                )

    def _open(
        self, name: str, key: Hashable, make_producer: MakeProducer, *, acknowledge: bool, settings: StreamSettings
    ) -> Source:
        return self._open_source(
            name, key, make_producer=make_producer, acknowledge=acknowledge, settings=settings, expected=self._expected
        )

    def join(self, spec: TriggerSpec) -> Source | None:
        """The stream a trigger watches, of which it is a member from now on; None: it runs by its `run()`.

        Raises what building the trigger raises, where only that tells what it watches.
        """
        source = self._find(spec)
        if self._members.get(spec.trigger_id) is not source:
            self._leave(spec.trigger_id)
        if source is not None:
            self._members[spec.trigger_id] = source
        return source

    def _find(self, spec: TriggerSpec) -> Source | None:
        if spec.stream is not None:
            return self._of_config[spec.stream]
        trigger = spec.build()
        if not isinstance(trigger, BaseEventTrigger) or (key := trigger.shared_stream_key()) is None:
            return None
        return self._of_triggers.get(key) or self._open_own(trigger, key)

    def _leave(self, trigger_id: str) -> None:
        if (source := self._members.pop(trigger_id, None)) is not None:
            self._left.append((trigger_id, source))

    def _open_own(self, trigger: BaseEventTrigger, key: Hashable) -> Source:
        kind = type(trigger)
        names = {source.name for source in self._of_triggers.values()}
        name, count = kind.__qualname__, 1  # of the class: a key may hold secrets
        while name in names:
            count += 1
            name = f"{kind.__qualname__}#{count}"
        source = self._open(name, key, of_trigger, acknowledge=acknowledges(kind), settings=self._defaults)
        self._of_triggers[key] = source
        return source

    def _expected(self, source: Source) -> list[str]:
        return [trigger_id for trigger_id, its in self._members.items() if its is source and self._is_wanted(trigger_id)]

    async def forget(self, trigger_ids: Iterable[str]) -> None:
        """These belong to no stream any more. Who has left a stream is not expected there; one that nobody watches is closed."""
        for trigger_id in trigger_ids:
            self._leave(trigger_id)
        while self._left:
            trigger_id, source = self._left.pop()
            await source.manager.unsubscribe(trigger_id, source.key)
        used = set(map(id, self._members.values()))
        unused = [key for key, source in self._of_triggers.items() if id(source) not in used]
        await asyncio.gather(*(self._stop(self._of_triggers.pop(key)) for key in unused))

    async def close(self, names: Iterable[str]) -> None:
        """Close these streams of the config, as far as they are there."""
        closing = [self._of_config.pop(name) for name in names if name in self._of_config]
        await asyncio.gather(*map(self._stop, closing))

    @staticmethod
    async def _stop(source: Source) -> None:
        await source.stop(source.patience)
