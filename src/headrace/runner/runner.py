"""Runs the triggers of a configuration: one run each, on the streams they watch, as the store says they should.

What is wanted is the specs (the config) and the states (what users made of the triggers, in the store); what there is are runs.
`apply` changes the specs; a poll of the store brings the states, and each trigger follows its own, whatever the others do.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from headrace.errors import ConfigError, StoreError
from headrace.runner.filtering import FilterRun
from headrace.runner.hosting import HostedProducer
from headrace.runner.keeping import keep_running
from headrace.runner.lag import BLOCKED_AFTER, LoopWatch
from headrace.runner.leases import LeaseKeeper
from headrace.runner.observer import Observer
from headrace.runner.owning import OwnedRun
from headrace.runner.source import Source
from headrace.runner.sources import Sources
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.runner.status import RunnerStatus, stream_status, trigger_status
from headrace.runner.submitter import Submitter
from headrace.runner.supervision import END_TIMEOUT, USER_TASK, Leave, Phase, Run, UnbuiltRun
from headrace.store import Store, TriggerRecord, TriggerState, Writer
from headrace.streams.stream import StreamSettings

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
        self._runs: dict[str, Run] = {}
        self._applying = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        """Triggers that are following a user's wish."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._helpers: list[asyncio.Task[None]] = []
        self._submitter: Submitter
        self._sources: Sources
        self._keeper: LeaseKeeper
        self._watch: LoopWatch | None = None

    # Life.

    async def start(self) -> None:
        """Register the triggers and start those that are active. Raises `StoreUnavailable`; nothing runs then."""
        self._note(await self._register(self._triggers.values()))
        loop = asyncio.get_running_loop()
        self._submitter = Submitter(self._store, self._observer, make_writer=self._make_writer)
        open_source = partial(Source, submitter=self._submitter, observer=self._observer, host=self._host)
        self._sources = Sources(open_source, self._is_wanted, self._defaults)
        self._keeper = LeaseKeeper(self._store.leases, uuid.uuid4().hex)
        if self._blocked_after is not None:
            self._watch = LoopWatch(_trigger_of, self._observer.on_loop_blocked, blocked_after=self._blocked_after)
            self._watch.start()
        self._helpers = [
            loop.create_task(keep_running(name, work), name=name)
            for name, work in (
                ("leases", self._keeper.run),
                ("trigger states", self._follow_states),
                ("source stats", self._refresh_stats),
            )
        ]
        self._sources.open(self._streams.values())
        self._begin(self._triggers)

    async def stop(self, timeout: float) -> None:
        """Take no more, finish what is in hand, store it, advance it, close; within `timeout` seconds.

        Filters may finish the event that they have in hand; what they have not pulled is left to redelivery. Cancel it to stop
        at once.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        if self._watch is not None:
            self._watch.stop()
        leases, *others = self._helpers
        for task in (*others, *self._changes):
            task.cancel()
        await _all_within(timeout / 2, [run.stop(Leave.WITH_STREAM, timeout / 3) for run in self._runs.values()])
        if not await self._submitter.flush(max(0.0, (deadline - clock()) / 2)):
            log.error("shutting down: what the store has not answered for comes again with its redelivery")
        await asyncio.gather(*(source.stop(max(0.1, deadline - clock())) for source in self._sources))
        leases.cancel()
        await asyncio.wait(self._helpers)
        await self._submitter.aclose()

    async def apply(self, streams: Iterable[StreamSpec], triggers: Iterable[TriggerSpec]) -> None:
        """Go over to another config: what is unchanged runs on. Triggers that it lacks are removed, with their `on_kill`.

        Raises `ConfigError`, or `StoreUnavailable` before anything of what runs is changed: apply it again then.
        """
        new_streams = {spec.name: spec for spec in streams}
        new_triggers = {spec.trigger_id: spec for spec in triggers}
        _check_references(new_streams, new_triggers)
        async with self._applying:
            records = await self._register(new_triggers.values())
            for trigger_id in self._triggers.keys() - new_triggers.keys():
                await self._store.triggers.set_state(trigger_id, TriggerState.REMOVED, NOT_IN_CONFIG)
            if self._changes:
                await asyncio.wait(self._changes)
            reopened = {name for name, spec in self._streams.items() if new_streams.get(name) != spec}
            leaving = [(old, how) for old in self._triggers.values() if (how := _how_to_leave(old, new_triggers, reopened))]
            self._streams, self._triggers = new_streams, new_triggers
            self._note(records)
            await asyncio.gather(*(self._end(old, how) for old, how in leaving))
            await self._submitter.flush(END_TIMEOUT)  # what is stored need not come again when its stream is reopened
            await self._sources.close(reopened)
            self._sources.open(new_streams.values())
            self._begin(new_triggers)
            await self._sources.forget(old.trigger_id for old, _ in leaving if old.trigger_id not in new_triggers)

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

    def _is_wanted(self, trigger_id: str) -> bool:
        return trigger_id in self._triggers and self._states.get(trigger_id) is TriggerState.ACTIVE

    async def _follow_states(self) -> None:
        """Do what users say in the store, within a second."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                records = await self._store.triggers.changed_since(self._revision)
            except StoreError as error:
                log.debug("trigger states are not known now: %s", error)
            else:
                async with self._applying:
                    self._follow(records)

    def _follow(self, records: Iterable[TriggerRecord]) -> None:
        before = dict(self._states)
        self._note(records)
        for record in records:
            trigger_id, state = record.definition.trigger_id, record.state
            if trigger_id in self._triggers and state is not before.get(trigger_id):
                log.info("trigger %s: %s", trigger_id, state)
                change = asyncio.get_running_loop().create_task(self._change(self._triggers[trigger_id], state))
                self._changes.add(change)
                change.add_done_callback(self._changes.discard)

    async def _change(self, spec: TriggerSpec, state: TriggerState) -> None:
        """Let one trigger follow, after what it was told before."""
        async with self._locks[spec.trigger_id]:
            if state is TriggerState.REMOVED:
                await self._end(spec, Leave.REMOVED)
            elif not self._is_wanted(spec.trigger_id):
                await self._end(spec, Leave.PAUSED)
            self._begin([spec.trigger_id])

    # What there is.

    def _begin(self, trigger_ids: Iterable[str]) -> None:
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

    async def _end(self, spec: TriggerSpec, how: Leave) -> None:
        """Stop a trigger if it runs. One that is removed needs an instance for its `on_kill`, whether it runs or not."""
        run = self._runs.get(spec.trigger_id)
        if run is not None:
            await run.stop(how, EVENT_GRACE)
            self._runs.pop(spec.trigger_id, None)
        elif how is Leave.REMOVED:
            await self._make_run(spec).stop(how, EVENT_GRACE)

    def _make_run(self, spec: TriggerSpec) -> Run:
        parts: Any = {"store": self._store, "submitter": self._submitter, "observer": self._observer}
        run: Run
        try:
            source = self._sources.join(spec)
        except Exception as error:
            run = UnbuiltRun(spec, self._observer, error, self._built)
        else:
            run = OwnedRun(spec, self._keeper, **parts) if source is None else FilterRun(spec, source, **parts)
        run.on_finished = self._finished
        return run

    def _built(self, spec: TriggerSpec) -> None:
        """A trigger that could not be built can be now."""
        if self._triggers.get(spec.trigger_id) == spec and self._is_wanted(spec.trigger_id):
            run = self._runs[spec.trigger_id] = self._make_run(spec)
            run.start()

    def _finished(self, run: Run) -> None:
        self._states[run.trigger_id] = TriggerState.FINISHED

    # What it looks like.

    async def _refresh_stats(self) -> None:
        while True:
            for source in list(self._sources):
                await source.refresh_stats(STATS_SECONDS)
            await asyncio.sleep(STATS_SECONDS)

    def status(self) -> RunnerStatus:
        """What every stream and trigger is doing now."""
        return RunnerStatus(
            streams={source.name: stream_status(source, self._streams.get(source.name)) for source in self._sources},
            triggers={
                trigger_id: trigger_status(spec, self._states[trigger_id], self._runs.get(trigger_id))
                for trigger_id, spec in self._triggers.items()
            },
            is_store_available=self._submitter.is_available,
        )


def _how_to_leave(old: TriggerSpec, new_triggers: Mapping[str, TriggerSpec], reopened: Collection[str]) -> Leave | None:
    """What a new config means for a trigger of the old one; None: it runs on."""
    new = new_triggers.get(old.trigger_id)
    if new is None:
        return Leave.REMOVED
    if old.stream in reopened:
        return Leave.WITH_STREAM
    if new == old:
        return None
    return Leave.REPLACED if new.stream == old.stream else Leave.PAUSED


async def _all_within(seconds: float, waits: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run these side by side; what is not done in time is cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    if tasks:
        try:
            await asyncio.wait(tasks, timeout=seconds)
        finally:
            for task in tasks:
                task.cancel()


def _trigger_of(task: asyncio.Task[Any]) -> str | None:
    name = task.get_name()
    return name.removeprefix(USER_TASK) if name.startswith(USER_TASK) else None


def _check_references(streams: Mapping[str, StreamSpec], triggers: Mapping[str, TriggerSpec]) -> None:
    wrong = [spec for spec in triggers.values() if spec.stream is not None and spec.stream not in streams]
    if wrong:
        raise ConfigError([f"trigger {spec.trigger_id!r} watches {spec.stream!r}, which is no stream" for spec in wrong])
