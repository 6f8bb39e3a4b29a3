"""What the runner is doing, for readiness, metrics and people: plain data, taken at one moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.runner.source import Source
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.runner.supervision import Phase, Run
from headrace.store import TriggerState
from headrace.streams.stream import StreamState


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Without a live stream (nobody watches it, or it waits to be opened again) the counts are 0."""

    name: str
    connector: str
    state: str
    subscribers: int
    missing: tuple[str, ...]
    """Expected triggers that are not there: while there are any, nothing is committed past what they have not seen."""
    in_flight: int
    in_flight_bytes: int
    oldest_age: float | None
    """Seconds since the oldest event in flight was handed out."""
    last_error: str | None
    """What ended the stream last."""
    is_stuck: bool
    """Not polling although a trigger wants it to, or waiting for somebody missing."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """What the producer's own `stats()` says, where it has one: lag, reconnects; `trouble`, a sentence, makes it unready."""


@dataclass(frozen=True, slots=True)
class TriggerStatus:
    """One trigger of the config."""

    trigger_id: str
    class_path: str
    stream: str | None
    state: TriggerState
    """What a user, or its own end, made of it."""
    phase: Phase
    """What it is doing."""
    restarts: int
    last_error: str | None
    is_misconfigured: bool
    """It waits for somebody to change something."""


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    streams: Mapping[str, StreamStatus]
    triggers: Mapping[str, TriggerStatus]
    is_store_available: bool

    @property
    def problems(self) -> list[str]:
        """Why this process is not ready, a line each; empty: it is."""
        found = [] if self.is_store_available else ["the store does not answer"]
        for stream in self.streams.values():
            if stream.is_stuck:
                why = f"without {', '.join(stream.missing)}" if stream.missing else stream.last_error or "not started"
                found.append(f"stream {stream.name} is {stream.state}: {why}")
            if (trouble := stream.source.get("trouble")) is not None:
                found.append(f"stream {stream.name}: {trouble}")
        found += [
            f"trigger {trigger.trigger_id} cannot run: {trigger.last_error}"
            for trigger in self.triggers.values()
            if trigger.is_misconfigured or (trigger.stream is None and trigger.phase is Phase.WAITING)
        ]
        return found


def stream_status(source: Source, spec: StreamSpec | None) -> StreamStatus:
    """`spec`: None for a stream that triggers bring themselves."""
    stream = source.stream
    connector = spec.connector if spec is not None else ""
    last_error = None if source.last_error is None else repr(source.last_error)
    if stream is None:
        return StreamStatus(source.name, connector, "not open", 0, (), 0, 0, None, last_error, bool(source.expected))
    oldest = stream.ledger.oldest_time()
    missing = tuple(sorted(map(str, stream.missing)))
    return StreamStatus(
        name=source.name,
        connector=connector,
        state=stream.state.value,
        subscribers=len(stream.subscribers),
        missing=missing,
        in_flight=stream.ledger.in_flight,
        in_flight_bytes=stream.ledger.in_flight_bytes,
        oldest_age=None if oldest is None else asyncio.get_running_loop().time() - oldest,
        last_error=last_error,
        is_stuck=bool(missing) or (stream.state is not StreamState.POLLING and bool(source.expected)),
        source=source.stats,
    )


def trigger_status(spec: TriggerSpec, state: TriggerState, run: Run | None) -> TriggerStatus:
    """`run`: None while it does not run."""
    return TriggerStatus(
        trigger_id=spec.trigger_id,
        class_path=spec.definition.class_path,
        stream=spec.stream,
        state=state,
        phase=run.phase if run is not None else Phase.STOPPED,
        restarts=run.restarts if run is not None else 0,
        last_error=None if run is None or run.last_error is None else repr(run.last_error),
        is_misconfigured=run is not None and run.is_misconfigured,
    )
