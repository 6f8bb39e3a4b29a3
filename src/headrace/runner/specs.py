"""What is to run: built from a configuration, compared when it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.store import TriggerDefinition
from headrace.streams.contract import SharedStreamProducer
from headrace.streams.stream import StreamSettings
from headrace.triggers.base import BaseTrigger


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream of the config. Two that are equal need no restart: `create_producer` follows from the connector and its config."""

    name: str
    connector: str
    config: Any
    """The connector's own settings, validated; compared, never printed."""
    create_producer: Callable[[], SharedStreamProducer] = field(compare=False, repr=False)
    """Builds the producer of one poll, without connecting; called in the producer's thread."""
    settings: StreamSettings = field(default_factory=StreamSettings)
    acknowledge: bool = True
    """False: unacknowledged mode, the broker is told nothing."""


@dataclass(frozen=True, slots=True)
class TriggerSpec:
    """A trigger of the config. `build` makes a fresh instance, for each run of its filter or of its `run()`.

    With `definition.stream` it watches that stream of the config. Without, it watches the stream it names itself
    (`shared_stream_key`), or runs by its `run()`.
    """

    definition: TriggerDefinition
    build: Callable[[], BaseTrigger] = field(compare=False, repr=False)
    max_attempts: int = 5
    """How often its filter may fail on a message before that is a dead letter."""

    @property
    def trigger_id(self) -> str:
        return self.definition.trigger_id

    @property
    def stream(self) -> str | None:
        return self.definition.stream
