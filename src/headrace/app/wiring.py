"""From a configuration to what the runner and the dispatcher take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog

from headrace.app.config import Config, StreamConfig, TriggerConfig
from headrace.dispatch.targets import TARGETS, Target, TargetContext
from headrace.runner.specs import StreamSpec, TriggerSpec
from headrace.store import TriggerDefinition
from headrace.streams.stream import StreamSettings as EngineSettings
from headrace.triggers import BaseTrigger, PatternTrigger, decode_kwargs, encode_kwargs, serialize_trigger, trigger_path

log = structlog.stdlib.get_logger("headrace.serve")


def stream_specs(config: Config) -> list[StreamSpec]:
    """The streams, as the runner takes them."""
    return [_stream_spec(stream) for stream in config.streams.values()]


def trigger_specs(config: Config, registered: Mapping[str, TriggerDefinition]) -> list[TriggerSpec]:
    """The triggers, as the runner takes them. `registered` is what the store knows of them from before."""
    return [_trigger_spec(trigger, config, registered.get(trigger.name)) for trigger in config.triggers.values()]


def class_path(trigger: TriggerConfig) -> str:
    """The import path of the trigger's class."""
    return trigger_path(trigger.trigger_class or PatternTrigger)


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


def _trigger_spec(trigger: TriggerConfig, config: Config, registered: TriggerDefinition | None) -> TriggerSpec:
    path = class_path(trigger)
    if trigger.stream is None:
        assert trigger.trigger_class is not None
        kwargs, stored = _as_registered(path, trigger.trigger_class, trigger.kwargs, registered)
        definition = TriggerDefinition(trigger.name, path, stored)
        return TriggerSpec(definition, partial(trigger.trigger_class, **kwargs), config.defaults.max_attempts)
    stream = config.streams[trigger.stream]
    given = trigger.kwargs if trigger.trigger_class else {"match": trigger.match, "undecodable": stream.undecodable}
    definition = TriggerDefinition(trigger.name, path, encode_kwargs(given), trigger.stream)
    return TriggerSpec(definition, partial(trigger.trigger_class or PatternTrigger, **given), stream.settings.max_attempts)


def _as_registered(
    path: str, kind: type[BaseTrigger], given: Mapping[str, Any], registered: TriggerDefinition | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments that a trigger which runs by itself is built with, and what of it is stored.

    It goes on as it was registered until its config changes: one that waits an hour from when it was made waits for what is
    left of the hour after a restart. That is what its `serialize()` is for.
    """
    asked = encode_kwargs(given)
    if registered is not None and registered.class_path == path and registered.kwargs.get("given") == asked:
        try:
            kwargs = decode_kwargs(registered.kwargs["serialized"])
            kind(**kwargs)
        except Exception as error:  # stored by another version of the class; whatever it raises, it is built anew
            log.warning("a trigger cannot be built as it was registered", trigger=registered.trigger_id, error=repr(error))
        else:
            return kwargs, dict(registered.kwargs)
    kwargs = serialize_trigger(kind(**given)).kwargs
    return kwargs, {"given": asked, "serialized": encode_kwargs(kwargs)}


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
