"""What a Kafka stream takes: the schema of everything under `connector: kafka`.

Names are those of Kafka's consumer and of aiokafka, without `_ms`: durations are seconds, sizes bytes. The README's table is
made from this module.
"""

from __future__ import annotations

import re
import socket
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=249)]
Topic = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]

HOSTNAME: Final = "{hostname}"


class KafkaConfig(BaseModel):
    """A consumer group on one or more Kafka topics."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True)

    bootstrap_servers: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Brokers to ask first, `host:port`: a list, or one string with commas."""
    topics: tuple[Topic, ...] = ()
    """The topics to read. Either this or `topic_pattern`."""
    topic_pattern: str | None = None
    """A regular expression that must match the whole name of a topic. New topics are found within `metadata_max_age`."""
    group_id: Name
    """The consumer group, which Headrace should have for itself. It holds the positions, and replicas share its partitions."""
    client_id: Name = "headrace"
    """How this client is called in the broker's logs and quotas."""
    group_instance_id: Name | None = None
    """Static membership: a replica that restarts within `session_timeout` keeps its partitions. Every replica needs an id of its
    own, so `{hostname}` in it is replaced, and where it has none `-` and the host's name are added."""
    auto_offset_reset: Literal["earliest", "latest", "none"] = "earliest"
    """Where a partition starts for which the group has no position: at the oldest message, at the next new one, or not at all."""
    on_offset_gone: Literal["fail", "earliest", "latest"] = "fail"
    """What to do when the group's position is not in the partition any more (retention deleted it, or the topic was made anew):
    stop with an error, or report the gap and go on at the oldest message or at the next new one."""
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """`read_committed` hands out a transaction's messages once it is committed, and never those of an aborted one."""
    dead_letter_topic: Topic | None = None
    """Where rejected messages go before their position is committed. It may have any number of partitions."""

    session_timeout: PositiveSeconds = 30.0
    """How long the broker waits for a heartbeat before it gives this replica's partitions to others."""
    heartbeat_interval: PositiveSeconds = 3.0
    """Seconds between heartbeats; at most a third of `session_timeout`."""
    max_poll_interval: PositiveSeconds = 300.0
    """How long aiokafka may go unpolled before it leaves the group. The connector polls by itself, whatever triggers do."""
    rebalance_grace: Seconds = 1.0
    """How long a rebalance waits for messages in flight to settle before partitions are given away."""
    partition_assignment_strategy: Literal["roundrobin", "range"] = "roundrobin"
    """How the group divides partitions among replicas; the same on each of them."""

    max_poll_records: Count = 500
    """The most messages in one poll batch."""
    fetch_min_bytes: Count = 1
    """The broker answers a fetch when it has this much, or after `fetch_max_wait`."""
    fetch_max_bytes: Count = 50 * 2**20
    """The most bytes in one answer of a broker."""
    fetch_max_wait: PositiveSeconds = 0.5
    """How long a broker may wait for `fetch_min_bytes`."""
    max_partition_fetch_bytes: Count = 2**20
    """The most bytes of one partition in an answer. A message that is larger still comes, alone."""
    check_crcs: bool = True
    """Verify each record batch's checksum."""
    client_rack: str | None = None
    """This client's rack: fetch from the nearest replica where the brokers allow it."""

    request_timeout: PositiveSeconds = 20.0
    """How long a broker may take to answer a request, and how long a settlement waits for its commit. Keep it below the stream's
    `advance_timeout`."""
    retry_backoff: PositiveSeconds = 0.1
    """Seconds between tries of one request."""
    metadata_max_age: PositiveSeconds = 300.0
    """How often topics, partitions and leaders are looked up anew."""
    connections_max_idle: PositiveSeconds = 540.0
    """Idle connections are closed after this."""

    commit_interval: Seconds = 0.05
    """The least time between two commits; one commit is for all partitions."""
    recommit_interval: PositiveSeconds = 3600.0
    """Positions that did not change are committed again after this, so that the broker does not forget an idle group."""
    redelivery_backoff: PositiveSeconds = 0.5
    """How long a partition rests before a failed message of it is handed out again. Doubles with each failure, and varies by up
    to a half."""
    redelivery_backoff_max: PositiveSeconds = 60.0
    """The longest rest."""
    watchdog_timeout: PositiveSeconds = 60.0
    """A partition that has messages and delivers none for this long, without an error, has the consumer rebuilt."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Encryption and authentication."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] = "PLAIN"
    """With `SASL_PLAINTEXT` and `SASL_SSL`. `GSSAPI` needs the `gssapi` extra."""
    sasl_plain_username: str | None = None
    """The user, for PLAIN and SCRAM."""
    sasl_plain_password: SecretStr | None = None
    """The password, for PLAIN and SCRAM."""
    sasl_kerberos_service_name: str = "kafka"
    """The brokers' service name, for GSSAPI."""
    sasl_kerberos_domain_name: str | None = None
    """The brokers' domain, for GSSAPI. Default: the host that is connected to."""
    sasl_oauth_token_provider: str | None = None
    """For OAUTHBEARER: `package.module:Class` of an `aiokafka.abc.AbstractTokenProvider`, built without arguments."""
    ssl_cafile: str | None = None
    """The authorities to trust, a PEM file. Default: the system's."""
    ssl_certfile: str | None = None
    """This client's certificate, a PEM file."""
    ssl_keyfile: str | None = None
    """Its key, where `ssl_certfile` does not hold it."""
    ssl_password: SecretStr | None = None
    """The key's password."""
    ssl_check_hostname: bool = True
    """False trusts a certificate for any host."""

    @field_validator("bootstrap_servers", "topics", mode="before")
    @classmethod
    def _split(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            return value
        return [part.strip() for part in value.split(",")] if info.field_name == "bootstrap_servers" else [value]

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for address in value:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                raise ValueError(f"expected host:port, found {address!r}")
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _consistent(self) -> KafkaConfig:
        problems = [problem for problem, wrong in self._rules() if wrong]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _rules(self) -> list[tuple[str, bool]]:
        sasl, tls = "SASL" in self.security_protocol, "SSL" in self.security_protocol
        by_password = sasl and self.sasl_mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        credentials = self.sasl_plain_username is not None and self.sasl_plain_password is not None
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self.ssl_password)
        return [
            ("give either topics or topic_pattern", bool(self.topics) == (self.topic_pattern is not None)),
            ("dead_letter_topic is among the topics that are read: it would be read again", self.reads(self.dead_letter_topic)),
            ("heartbeat_interval is more than a third of session_timeout", self.heartbeat_interval * 3 > self.session_timeout),
            ("redelivery_backoff is more than redelivery_backoff_max", self.redelivery_backoff > self.redelivery_backoff_max),
            (
                f"{self.sasl_mechanism} needs sasl_plain_username and sasl_plain_password",
                by_password and not credentials,
            ),
            (
                "sasl_plain_username and sasl_plain_password need security_protocol SASL_PLAINTEXT or SASL_SSL",
                not sasl and (self.sasl_plain_username is not None or self.sasl_plain_password is not None),
            ),
            (
                "OAUTHBEARER needs sasl_oauth_token_provider",
                sasl and self.sasl_mechanism == "OAUTHBEARER" and self.sasl_oauth_token_provider is None,
            ),
            ("ssl_* needs security_protocol SSL or SASL_SSL", not tls and any(file is not None for file in files)),
            ("ssl_keyfile needs ssl_certfile", self.ssl_keyfile is not None and self.ssl_certfile is None),
        ]

    def reads(self, topic: str | None) -> bool:
        """Whether this stream reads the topic."""
        if topic is None:
            return False
        return topic in self.topics or (self.topic_pattern is not None and re.fullmatch(self.topic_pattern, topic) is not None)

    @property
    def servers(self) -> str:
        """`bootstrap_servers` as one string."""
        return ",".join(self.bootstrap_servers)

    @property
    def member_name(self) -> str | None:
        """The `group.instance.id` of this replica; None without static membership."""
        if self.group_instance_id is None:
            return None
        named = self.group_instance_id if HOSTNAME in self.group_instance_id else f"{self.group_instance_id}-{HOSTNAME}"
        return named.replace(HOSTNAME, socket.gethostname())
