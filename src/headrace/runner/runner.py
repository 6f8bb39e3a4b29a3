"""Runs the triggers of a configuration: one run each, on the streams they watch, as the store says they should.

What is wanted is the specs (the config) and the states (what users made of the triggers, in the store); what there is are runs.
`apply` changes the specs, a poll of the store brings the states, and both go through `_reconcile`, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from headrace.errors import ConfigError, StoreError
from headrace.runner.filtering import FilterRun
from headrace.runner.hosting import HostedProducer
from headrace.runner.lag import BLOCKED_AFTER, LoopWatch
from headrace.runner.leases import LeaseKeeper
from headrace.runner.observer import Observer
from headrace.runner.owning import OwnedRun
from headrace.runner.source import MakeProducer, Source, acknowledges, of_config, of_trigger
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.runner.status import RunnerStatus, StreamStatus, TriggerStatus
from headrace.runner.submitter import Submitter
from headrace.runner.supervision import USER_TASK, Leave, Phase, Run, UnbuiltRun
from headrace.store import Store, TriggerRecord, TriggerState, Writer
from headrace.streams.stream import StreamSettings, StreamState
from headrace.triggers.base import BaseEventTrigger

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.5
"""How often the store is asked whether a user paused, resumed or removed a trigger."""
STATS_SECONDS: Final = 5.0
"""How often producers are asked for their stats, and how long they may take to tell."""
EVENT_GRACE: Final = 5.0
"""Seconds that a filter has to finish the event in hand when its trigger is paused, removed or replaced."""
NOT_IN_CONFIG: Final = "not in the config any more"
"""Why a trigger is removed that a new config lacks; such a one is active again when it comes back."""


class Runner:
    """Between `start` and `stop`. `defaults` are the settings of streams that triggers bring themselves.

    The loop is watched for being blocked for more than `blocked_after` seconds (None: it is not). `make_writer` and `host` are
    for tests.
    """

    def __init__(
        self,
        store: Store,
        streams: Iterable[StreamSpec],
        triggers: Iterable[TriggerSpec],
        *,
        observer: Observer | None = None,
        defaults: StreamSettings | None = None,
        blocked_after: float | None = BLOCKED_AFTER,
        make_writer: Callable[..., Writer] = Writer,
        host: Callable[..., HostedProducer] = HostedProducer,
    ) -> None:
        self._store = store
        self._observer = observer or Observer()
        self._defaults = defaults or StreamSettings()
        self._blocked_after = blocked_after
        self._make_writer = make_writer
        self._host = host
        self._streams = {spec.name: spec for spec in streams}
        self._triggers = {spec.trigger_id: spec for spec in triggers}
        _check_references(self._streams, self._triggers)
        self._states: dict[str, TriggerState] = {}
        self._revision = 0
        self._sources: dict[str, Source] = {}
        self._own_sources: dict[Any, Source] = {}
        """Streams that triggers bring themselves, by key."""
        self._source_of: dict[str, Source] = {}
        self._runs: dict[str, Run] = {}
        self._changing = asyncio.Lock()
        self._helpers: list[asyncio.Task[None]] = []
        self._submitter: Submitter
        self._keeper: LeaseKeeper
        self._watch: LoopWatch | None = None

    # Life.

    async def start(self) -> None:
        """Register the triggers and start those that are active. Raises `StoreUnavailable`; nothing runs then."""
        records = await self._register(self._triggers.values())
        loop = asyncio.get_running_loop()
        self._submitter = Submitter(self._store, self._observer, make_writer=self._make_writer)
        self._keeper = LeaseKeeper(self._store.leases, uuid.uuid4().hex)
        if self._blocked_after is not None:
            self._watch = LoopWatch(self._trigger_of, self._observer.on_loop_blocked, blocked_after=self._blocked_after)
            self._watch.start()
        self._helpers = [
            loop.create_task(self._keeper.run(), name="leases"),
            loop.create_task(self._follow_states(), name="trigger states"),
            loop.create_task(self._refresh_stats(), name="source stats"),
        ]
        async with self._changing:
            self._note(records)
            self._open_sources(self._streams.values())
            self._start_runs(self._triggers)

    async def stop(self, timeout: float) -> None:
        """Take no more, finish what is in hand, store it, advance it, close; within `timeout` seconds.

        Filters may finish the event that they have in hand; what they have not pulled is left to redelivery. Cancel it to stop
        at once.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        if self._watch is not None:
            self._watch.stop()
        runs = list(self._runs.values())
        leases, *others = self._helpers
        for other in others:
            other.cancel()
        if runs:
            stops = [asyncio.ensure_future(run.stop(Leave.WITH_STREAM, timeout / 3)) for run in runs]
            try:
                await asyncio.wait(stops, timeout=timeout / 2)
            finally:
                for stop in stops:
                    stop.cancel()
        if not await self._submitter.flush(max(0.0, (deadline - clock()) / 2)):
            log.error("shutting down: what the store has not answered for comes again with its redelivery")
        await asyncio.gather(*(source.stop(max(0.1, deadline - clock())) for source in self._all_sources()))
        leases.cancel()
        await asyncio.wait(self._helpers)
        await self._submitter.aclose()

    async def apply(self, streams: Iterable[StreamSpec], triggers: Iterable[TriggerSpec]) -> None:
        """Go over to another config: what is unchanged runs on. Triggers that it lacks are removed, with their `on_kill`.

        Raises `ConfigError` or `StoreUnavailable`; everything goes on as it was then.
        """
        new_streams = {spec.name: spec for spec in streams}
        new_triggers = {spec.trigger_id: spec for spec in triggers}
        _check_references(new_streams, new_triggers)
        async with self._changing:
            records = await self._register(new_triggers.values())
            removed = self._triggers.keys() - new_triggers.keys()
            for trigger_id in removed:
                await self._store.triggers.set_state(trigger_id, TriggerState.REMOVED, NOT_IN_CONFIG)
            reopened = {name for name, spec in self._streams.items() if new_streams.get(name) != spec}
            leaving: dict[str, Leave] = {}
            for trigger_id, old in self._triggers.items():
                if trigger_id in removed:
                    leaving[trigger_id] = Leave.REMOVED
                elif old.stream in reopened:
                    leaving[trigger_id] = Leave.WITH_STREAM
                elif (new := new_triggers[trigger_id]) != old:
                    leaving[trigger_id] = Leave.REPLACED if new.stream == old.stream else Leave.PAUSED
            old_triggers = self._triggers
            self._streams, self._triggers = new_streams, new_triggers
            self._note(records)
            await self._stop_runs(leaving, old_triggers)
            await self._close_sources(reopened)
            self._open_sources(new_streams.values())
            self._start_runs(new_triggers)

    # What is wanted.

    async def _register(self, specs: Iterable[TriggerSpec]) -> list[TriggerRecord]:
        records = await self._store.triggers.register([spec.definition for spec in specs])
        return [
            await self._store.triggers.set_state(record.definition.trigger_id, TriggerState.ACTIVE)
            if record.state is TriggerState.REMOVED and record.reason == NOT_IN_CONFIG
            else record
            for record in records
        ]

    def _note(self, records: Iterable[TriggerRecord]) -> None:
        for record in records:
            self._states[record.definition.trigger_id] = record.state
            self._revision = max(self._revision, record.revision)

    async def _follow_states(self) -> None:
        """Do what users say in the store, within a second."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                records = await self._store.triggers.changed_since(self._revision)
            except StoreError as error:
                log.debug("trigger states are not known now: %s", error)
                continue
            if records:
                async with self._changing:
                    await self._follow(records)

    async def _follow(self, records: list[TriggerRecord]) -> None:
        before = dict(self._states)
        self._note(records)
        leaving: dict[str, Leave] = {}
        for record in records:
            trigger_id, state = record.definition.trigger_id, record.state
            if trigger_id not in self._triggers or state is before.get(trigger_id):
                continue
            log.info("trigger %s: %s", trigger_id, state)
            if state is TriggerState.REMOVED:
                leaving[trigger_id] = Leave.REMOVED
            elif state is not TriggerState.ACTIVE and trigger_id in self._runs:
                leaving[trigger_id] = Leave.PAUSED
        await self._stop_runs(leaving, self._triggers)
        self._start_runs(record.definition.trigger_id for record in records)

    async def _refresh_stats(self) -> None:
        while True:
            for source in self._all_sources():
                await source.refresh_stats(STATS_SECONDS)
            await asyncio.sleep(STATS_SECONDS)

    def _all_sources(self) -> list[Source]:
        return [*self._sources.values(), *self._own_sources.values()]

    def _expected(self, source: Source) -> list[str]:
        """Who belongs to a stream now, whether it is there or is just being replaced."""
        return [trigger_id for trigger_id, its in self._source_of.items() if its is source and self._is_wanted(trigger_id)]

    def _is_wanted(self, trigger_id: str) -> bool:
        return trigger_id in self._triggers and self._states.get(trigger_id) is TriggerState.ACTIVE

    # What there is.

    def _open_sources(self, specs: Iterable[StreamSpec]) -> None:
        for spec in specs:
            if spec.name not in self._sources:
                make_producer = of_config(spec.create_producer)
                self._sources[spec.name] = self._open_source(
                    spec.name, spec.name, make_producer, acknowledge=spec.acknowledge, settings=spec.settings
                )

    def _open_source(
        self, name: str, key: Any, make_producer: MakeProducer, *, acknowledge: bool, settings: StreamSettings
    ) -> Source:
        return Source(
            name,
            key,
            make_producer=make_producer,
            acknowledge=acknowledge,
            settings=settings,
            expected=self._expected,
            submitter=self._submitter,
            observer=self._observer,
            host=self._host,
        )

    def _own_source(self, trigger: BaseEventTrigger, key: Any) -> Source:
        """The stream that a trigger brings itself: shared by all triggers of an equal key."""
        if key not in self._own_sources:
            kind = type(trigger)
            taken = sum(source.name.partition("#")[0] == kind.__qualname__ for source in self._own_sources.values())
            name = f"{kind.__qualname__}#{taken + 1}" if taken else kind.__qualname__  # a key may hold secrets
            self._own_sources[key] = self._open_source(
                name, key, of_trigger, acknowledge=acknowledges(kind), settings=self._defaults
            )
        return self._own_sources[key]

    async def _close_sources(self, names: Iterable[str]) -> None:
        closing = [self._sources.pop(name) for name in names]
        await asyncio.gather(*(source.stop(source.patience) for source in closing))

    def _start_runs(self, trigger_ids: Iterable[str]) -> None:
        """Start those that are wanted and not running. All of them are known before the first subscribes: they are expected."""
        starting = [
            self._make_run(self._triggers[each])
            for each in trigger_ids
            if self._is_wanted(each) and (each not in self._runs or self._runs[each].phase is Phase.FINISHED)
        ]
        for run in starting:
            self._runs[run.trigger_id] = run
        for run in starting:
            run.start()

    async def _stop_runs(self, leaving: Mapping[str, Leave], specs: Mapping[str, TriggerSpec]) -> None:
        """Stop these; of those that are to be removed and do not run, make an instance for `on_kill`."""
        stops = []
        for trigger_id, how in leaving.items():
            run = self._runs.pop(trigger_id, None)
            if run is None and how is Leave.REMOVED:
                run = self._make_run(specs[trigger_id])
            if run is not None:
                stops.append(run.stop(how, EVENT_GRACE))
        await asyncio.gather(*stops)

    def _make_run(self, spec: TriggerSpec) -> Run:
        try:
            source = self._source(spec)
        except Exception as error:
            run: Run = UnbuiltRun(spec, self._observer, error, self._built)
        else:
            parts: Any = {"store": self._store, "submitter": self._submitter, "observer": self._observer}
            if source is None:
                run = OwnedRun(spec, self._keeper, **parts)
            else:
                self._source_of[spec.trigger_id] = source
                run = FilterRun(spec, source, **parts)
        run.on_finished = self._finished
        return run

    def _source(self, spec: TriggerSpec) -> Source | None:
        """The stream a trigger watches; None: it runs by its `run()`. Raises what building it raises."""
        if spec.stream is not None:
            return self._sources[spec.stream]
        trigger = spec.build()
        key = trigger.shared_stream_key() if isinstance(trigger, BaseEventTrigger) else None
        return None if key is None else self._own_source(trigger, key)  # type: ignore[arg-type]

    def _built(self, spec: TriggerSpec) -> None:
        """A trigger that could not be built can be now."""
        if self._triggers.get(spec.trigger_id) == spec and self._is_wanted(spec.trigger_id):
            run = self._runs[spec.trigger_id] = self._make_run(spec)
            run.start()

    def _finished(self, run: Run) -> None:
        self._states[run.trigger_id] = TriggerState.FINISHED

    def _trigger_of(self, task: asyncio.Task[Any]) -> str | None:
        name = task.get_name()
        return name.removeprefix(USER_TASK) if name.startswith(USER_TASK) else None

    # What it looks like.

    def status(self) -> RunnerStatus:
        """What every stream and trigger is doing now."""
        return RunnerStatus(
            streams={source.name: self._stream_status(source) for source in self._all_sources()},
            triggers={trigger_id: self._trigger_status(spec) for trigger_id, spec in self._triggers.items()},
            is_store_available=self._submitter.is_available,
        )

    def _stream_status(self, source: Source) -> StreamStatus:
        spec = self._streams.get(source.name)
        stream = source.stream
        is_polling = stream is not None and stream.state is StreamState.POLLING
        missing = tuple(sorted(map(str, stream.missing))) if stream is not None else ()
        oldest = stream.ledger.oldest_time() if stream is not None else None
        return StreamStatus(
            name=source.name,
            connector=spec.connector if spec is not None else "",
            state=stream.state.value if stream is not None else "not open",
            subscribers=len(stream.subscribers) if stream is not None else 0,
            missing=missing,
            in_flight=stream.ledger.in_flight if stream is not None else 0,
            in_flight_bytes=stream.ledger.in_flight_bytes if stream is not None else 0,
            oldest_age=None if oldest is None else asyncio.get_running_loop().time() - oldest,
            last_error=None if source.last_error is None else repr(source.last_error),
            is_stuck=bool(missing) or (not is_polling and bool(self._expected(source))),
            source=source.stats,
        )

    def _trigger_status(self, spec: TriggerSpec) -> TriggerStatus:
        run = self._runs.get(spec.trigger_id)
        return TriggerStatus(
            trigger_id=spec.trigger_id,
            class_path=spec.definition.class_path,
            stream=spec.stream,
            state=self._states[spec.trigger_id],
            phase=run.phase if run is not None else Phase.STOPPED,
            restarts=run.restarts if run is not None else 0,
            last_error=None if run is None or run.last_error is None else repr(run.last_error),
            is_misconfigured=run is not None and run.is_misconfigured,
        )


def _check_references(streams: Mapping[str, StreamSpec], triggers: Mapping[str, TriggerSpec]) -> None:
    wrong = [spec for spec in triggers.values() if spec.stream is not None and spec.stream not in streams]
    if wrong:
        raise ConfigError([f"trigger {spec.trigger_id!r} watches {spec.stream!r}, which is no stream" for spec in wrong])
