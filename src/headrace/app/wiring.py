"""From a configuration to what the runner and the dispatcher take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace.app.config import Config, StreamConfig, TriggerConfig
from headrace.dispatch.targets import TARGETS, Target, TargetContext
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.store import TriggerDefinition
from headrace.streams.stream import StreamSettings as EngineSettings
from headrace.triggers.base import BaseTrigger
from headrace.triggers.pattern import PatternTrigger


def stream_specs(config: Config) -> list[StreamSpec]:
    """The streams, as the runner takes them."""
    return [_stream_spec(stream) for stream in config.streams.values()]


def trigger_specs(config: Config) -> list[TriggerSpec]:
    """The triggers, as the runner takes them."""
    return [_trigger_spec(trigger, config) for trigger in config.triggers.values()]


def engine_settings(stream: StreamConfig) -> EngineSettings:
    """What the engine takes of a stream's settings; it may advance as many lanes at once as the producer bears."""
    settings = stream.settings.model_dump(exclude={"max_attempts"})
    return EngineSettings(**settings, max_parallel_advances=stream.connector.capabilities.parallel_advances)


def default_settings(config: Config) -> EngineSettings:
    """The same for streams that trigger classes open by themselves."""
    return EngineSettings(**config.defaults.model_dump(exclude={"max_attempts"}))


def _stream_spec(stream: StreamConfig) -> StreamSpec:
    return StreamSpec(
        stream.name,
        stream.connector_name,
        stream.connector_config,
        partial(stream.connector.create_producer, stream.connector_config),
        engine_settings(stream),
        stream.acknowledge,
    )


def _trigger_spec(trigger: TriggerConfig, config: Config) -> TriggerSpec:
    stream = config.streams[trigger.stream] if trigger.stream is not None else None
    kind: Callable[..., BaseTrigger]
    kwargs: Mapping[str, Any]
    if trigger.trigger_class is not None:
        kind, kwargs = trigger.trigger_class, trigger.kwargs
    else:
        assert stream is not None
        kind, kwargs = PatternTrigger, {"match": trigger.match, "undecodable": stream.undecodable}
    definition = TriggerDefinition(trigger.name, f"{kind.__module__}.{kind.__qualname__}", kwargs, trigger.stream)
    settings = stream.settings if stream is not None else config.defaults
    return TriggerSpec(definition, partial(kind, **kwargs), settings.max_attempts)


class Targets:
    """The targets of the triggers, each built once for as long as its config stays the same."""

    def __init__(self) -> None:
        self._built: dict[str, tuple[Any, Target]] = {}

    def of(self, config: Config) -> dict[str, Target]:
        """The targets by trigger. What an earlier configuration had too is the same object again."""
        before, self._built = self._built, {}
        context = TargetContext(log_payloads=config.general.log_payloads)
        for name, trigger in config.triggers.items():
            wanted = (trigger.target, trigger.target_config, context)
            known = before.get(name)
            if known is not None and known[0] == wanted:
                self._built[name] = known
            else:
                self._built[name] = (wanted, TARGETS[trigger.target].build(trigger.target_config, context))
        return {name: target for name, (_, target) in self._built.items()}
