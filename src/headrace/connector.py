"""What a connector package offers, and how it is found.

A connector is a distribution of its own that names a `Connector` under the entry point group `headrace.connectors`. The core
knows brokers through this module alone. Read next: `connectors/local`, the one to copy.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar

import orjson
from pydantic import BaseModel

from headrace.errors import ConfigError
from headrace.streams.contract import Capabilities, SharedStreamProducer

ENTRY_POINT_GROUP = "headrace.connectors"


class Message:
    """One message of a broker, as every connector yields it. Read-only by convention; shared by all subscribers.

    `id` is the same on every redelivery and different for every message. `timestamp` is in epoch seconds. `headers` keeps
    order and repeats. `delivery_count` counts from 1, None where the broker does not count.
    """

    __slots__ = ("_json", "delivery_count", "headers", "id", "key", "source", "timestamp", "value")

    _json: Any  # set by the first `json()`

    def __init__(
        self,
        *,
        value: bytes | None,
        id: str,
        source: str,
        timestamp: float,
        key: bytes | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        delivery_count: int | None = None,
    ) -> None:
        self.value = value
        self.id = id
        self.source = source
        self.timestamp = timestamp
        self.key = key
        self.headers = headers
        self.delivery_count = delivery_count

    def json(self) -> Any:
        """The value decoded as JSON, once for all subscribers: do not change it. Raises `ValueError` where it is not JSON."""
        if not hasattr(self, "_json"):
            if self.value is None:
                raise ValueError("the message has no value (null)")
            self._json = orjson.loads(self.value)
        return self._json

    @property
    def byte_size(self) -> int:
        """Bytes of value, key and headers."""
        size = len(self.value) if self.value is not None else 0
        if self.key is not None:
            size += len(self.key)
        for name, value in self.headers:
            size += len(name) + (len(value) if value is not None else 0)
        return size

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, source={self.source!r}, {self.byte_size} bytes)"  # never the payload


class Connector(ABC):
    """A broker, as Headrace uses it. Stateless: each method gets the stream's validated config."""

    name: ClassVar[str]
    """The word after `connector:` in a config."""
    Config: ClassVar[type[BaseModel]]
    """The schema of everything else under the stream; forbids unknown keys; secrets are `SecretStr`."""
    capabilities: ClassVar[Capabilities]

    @abstractmethod
    def create_producer(self, config: Any) -> SharedStreamProducer:
        """Build the producer of one poll; it connects when its stream is opened."""

    @abstractmethod
    async def publish(self, config: Any, messages: Sequence[Message]) -> None:
        """Publish, and return when the broker has them durably. Uses `value`, `key` and `headers`. Raises `SourceUnavailable`
        or `SourceMisconfigured`."""

    def check(self, config: Any, stream_settings: Mapping[str, Any]) -> Iterable[str]:
        """Compare the config with the broker's limits, without connecting. Yields a line for each problem; a line that
        starts with `warning: ` does not stop `serve`. `stream_settings` has `ack_timeout`, `queue_timeout`,
        `max_in_flight`, `max_attempts`, `dedupe_retention` and the others of the stream."""
        return ()


def installed_connectors() -> dict[str, str]:
    """The names of the installed connectors, each with the distribution that brings it."""
    return {
        point.name: f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name)
    }


def load_connector(name: str) -> Connector:
    """Build the named connector. Raises `ConfigError` that lists those installed."""
    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
    if not found:
        known = installed_connectors()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(known) or "none"
        raise ConfigError([f"unknown connector {name!r}: installed are {listed}{hint}"])
    loaded: Connector | type[Connector] = found[0].load()
    return loaded() if isinstance(loaded, type) else loaded
