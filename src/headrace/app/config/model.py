"""The sections of a configuration: every key, its type, its default and what it is for. The JSON schema is made from here.

Durations are seconds and sizes bytes, as plain numbers. What a connector, a target or a trigger class takes is its own
schema, which `load.py` looks up.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from cryptography.fernet import Fernet
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from headrace.dispatch.config import DispatchConfig
from headrace.streams.contract import DEFAULT_ACK_TIMEOUT, DEFAULT_SUBSCRIBER_QUEUE_MAX

DAY: Final = 86_400.0

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]

NAME_PATTERN: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}$"
"""Stream and trigger names: they are part of event ids, URL paths and metrics."""

AIRFLOW_ALIASES: Final[Mapping[str, str]] = {
    "shared_stream_subscriber_queue_size": "subscriber_queue_size",
    "shared_stream_ack_timeout": "ack_timeout",
    "shared_stream_cohort_grace_period": "cohort_grace_period",
}
"""Airflow's names in its `[triggerer]` section, for ours. Also taken as `AIRFLOW__TRIGGERER__…` variables."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)


class StoreSection(Section):
    """Where derived events are kept."""

    url: Annotated[str, Field(repr=False)] = "sqlite:///headrace.db"
    """`sqlite:///FILE` (relative to the working directory) or `postgresql://USER:PASSWORD@HOST/DATABASE`."""
    secret_keys: tuple[SecretStr, ...] = ()
    """Fernet keys for trigger kwargs and stored raw events: the first encrypts, all decrypt."""

    @field_validator("url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if not url.startswith(("sqlite://", "postgresql://", "postgres://")):
            raise ValueError("expected sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE")
        return url

    @field_validator("secret_keys")
    @classmethod
    def _are_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for index, key in enumerate(keys):
            try:
                Fernet(key.get_secret_value())
            except ValueError as error:
                raise ValueError(
                    f"key {index} is not a Fernet key; make one with: "
                    'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'
                ) from error
        return keys


class HttpSection(Section):
    """Health, metrics and publishing over HTTP."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8970
    """0 takes a free port, which the log names."""
    token: SecretStr | None = None
    """What clients of `/api` and `/metrics` send as `Authorization: Bearer …`. Required beyond loopback."""
    max_body_bytes: Count = 8 * 2**20
    """The largest request body that is read."""

    @model_validator(mode="after")
    def _guarded(self) -> HttpSection:
        if self.token is not None and not self.token.get_secret_value().strip():
            raise ValueError("http.token is empty")
        if self.token is None and not is_loopback(self.host):
            raise ValueError("a token is required when http.host is not a loopback address (127.0.0.1, ::1, localhost)")
        return self


class StreamSettings(Section):
    """How a stream treats its subscribers; each can be set for all streams in `defaults`, and for one beside its `connector`."""

    subscriber_queue_size: Count = DEFAULT_SUBSCRIBER_QUEUE_MAX
    """Events a trigger may have unpulled before its stream waits for it."""
    ack_timeout: PositiveSeconds = DEFAULT_ACK_TIMEOUT
    """From pulling an event to having moved past it with all it derived stored."""
    cohort_grace_period: Seconds = 30.0
    """How long a stream waits for the triggers that belong to it, at the start and after one failed."""
    queue_timeout: PositiveSeconds | None = None
    """How long an event may wait for a trigger that pulls nothing. Default: `ack_timeout`."""
    overflow_grace: Seconds = 5.0
    """Seconds in any 60 that a trigger may keep its stream waiting with a full queue."""
    max_in_flight: Count = 100_000
    """Events read and not yet settled."""
    max_in_flight_bytes: Count = 256 * 2**20
    """Their bytes, with those of derived events that are not yet stored."""
    advance_timeout: PositiveSeconds = 30.0
    """How long the broker may take to settle a batch."""
    advance_retries: Annotated[int, Field(ge=0)] = 10
    """How often a settlement is tried again while the broker does not answer, before the stream starts anew."""
    close_timeout: PositiveSeconds = 10.0
    """How long the producer may take to close."""
    max_attempts: Count = 5
    """Tries of a trigger at one message before the message is a dead letter of that trigger."""


class StreamSection(StreamSettings):
    """A stream: `connector`, the connector's own keys, and any stream setting."""

    connector: str
    """The name of an installed connector; `headrace connectors` lists them."""
    undecodable: Literal["no_match", "reject"] = "no_match"
    """What a pattern does with a value that is not JSON."""
    acknowledge: bool = True
    """False: unacknowledged mode, in which nothing is settled with the broker."""


class TriggerSection(Section):
    """A trigger: `match` or `class` on a stream, or a `class` that runs by itself; and the target of its events."""

    stream: str | None = None
    """The stream it watches."""
    match: dict[str, Any] | None = None
    """An Amazon EventBridge event pattern over the message's JSON value."""
    class_: Annotated[str | None, Field(alias="class")] = None
    """`package.module:Class` (or `package.module.Class`), a subclass of BaseTrigger."""
    kwargs: dict[str, Any] = Field(default={}, repr=False)
    """Keyword arguments of the class."""
    target: dict[str, Any]
    """Exactly one of the targets, with its own keys."""

    @model_validator(mode="after")
    def _one_kind(self) -> TriggerSection:
        if self.match is not None and self.class_ is not None:
            raise ValueError("give `match` or `class`, not both")
        if self.match is None and self.class_ is None:
            raise ValueError("give `match` (a pattern) or `class` (a trigger of your own)")
        if self.match is not None and self.stream is None:
            raise ValueError("`match` needs `stream`, the name of the stream it watches")
        if self.match is not None and self.kwargs:
            raise ValueError("`kwargs` belong to a `class`; `match` takes none")
        return self


class GeneralSection(Section):
    """The top-level keys that are single values."""

    allowed_modules: tuple[str, ...] = ()
    """Modules (and all below them) whose triggers may be built from the store, besides those that this file names."""
    shutdown_timeout: PositiveSeconds = 30.0
    """How long SIGTERM may take: no new events, finish and settle what is in flight."""
    log_payloads: bool = False
    """Show payloads in logs. For development."""
    dedupe_retention: PositiveSeconds = 14 * DAY
    """How long the identity of a settled message is kept, so that a late redelivery is recognised."""
    retention: PositiveSeconds = 7 * DAY
    """How long the payloads of delivered events are kept."""
    dead_retention: PositiveSeconds = 30 * DAY
    """How long dead events and dead letters are kept with all they hold."""


class ConfigSection(GeneralSection):
    """A whole configuration file."""

    store: StoreSection = StoreSection()
    http: HttpSection = HttpSection()
    dispatch: DispatchConfig = DispatchConfig()
    defaults: StreamSettings = StreamSettings()
    """Stream settings for all streams."""
    streams: dict[str, StreamSection] = {}
    """The streams by name: one poll of a broker each, shared by all triggers that watch it."""
    triggers: dict[str, TriggerSection] = {}
    """The triggers by name."""
