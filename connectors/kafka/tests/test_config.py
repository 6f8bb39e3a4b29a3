"""The schema: what it takes, what it refuses, and what `check` says of a config that is legal."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from headrace_kafka import CONNECTOR, KafkaConfig
from headrace_kafka.client import connection_options
from pydantic import ValidationError

from headrace import SourceMisconfigured
from headrace.connector import installed_connectors, load_connector
from headrace.testing.readme import is_current

BASE: dict[str, Any] = {"bootstrap_servers": "a:9092, b:9092", "topics": ["orders"], "group_id": "g"}


def test_the_connector_is_found_by_its_name() -> None:
    """The entry point names the connector."""
    assert "kafka" in installed_connectors()
    assert load_connector("kafka") is CONNECTOR


def test_servers_and_topics_may_be_strings() -> None:
    """`bootstrap_servers` with commas, and a single topic, as Kafka's users write them."""
    config = KafkaConfig(**BASE | {"topics": "orders"})
    assert config.bootstrap_servers == ("a:9092", "b:9092")
    assert config.servers == "a:9092,b:9092"
    assert config.topics == ("orders",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": []}, "either topics or topic_pattern"),
        ({"topic_pattern": "o.*"}, "either topics or topic_pattern"),
        ({"topics": [], "topic_pattern": "("}, "not a regular expression"),
        ({"bootstrap_servers": "a"}, "expected host:port, found 'a'"),
        ({"bootstrap_servers": "a:0"}, "expected host:port"),
        ({"bootstrap_servers": []}, "at least 1 item"),
        ({"dead_letter_topic": "orders"}, "it would be read again"),
        ({"topics": [], "topic_pattern": "ord.*", "dead_letter_topic": "orders.dead"}, "it would be read again"),
        ({"heartbeat_interval": 11}, "more than a third of session_timeout"),
        ({"redelivery_backoff": 100}, "more than redelivery_backoff_max"),
        ({"security_protocol": "SASL_SSL"}, "PLAIN needs sasl_plain_username and sasl_plain_password"),
        ({"sasl_plain_username": "u"}, "need security_protocol SASL_PLAINTEXT or SASL_SSL"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_provider"),
        ({"ssl_cafile": "ca.pem"}, "needs security_protocol SSL or SASL_SSL"),
        ({"security_protocol": "SSL", "ssl_keyfile": "key.pem"}, "ssl_keyfile needs ssl_certfile"),
        ({"session_timeout_ms": 1}, "Extra inputs are not permitted"),
        ({"topics": ["a b"]}, "should match pattern"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    """Each mistake names the options it is about."""
    with pytest.raises(ValidationError) as raised:
        KafkaConfig(**BASE | options)
    assert said in str(raised.value)


def test_k26_instance_ids_are_derived_per_replica() -> None:
    """K26: the host's name is part of every id, where the user puts it or at the end."""
    host = socket.gethostname()
    assert KafkaConfig(**BASE).member_name is None
    assert KafkaConfig(**BASE, group_instance_id="orders").member_name == f"orders-{host}"
    assert KafkaConfig(**BASE, group_instance_id="{hostname}/orders").member_name == f"{host}/orders"


def test_secrets_are_not_shown() -> None:
    """Passwords are in no repr and in no validation error."""
    secrets = {"sasl_plain_username": "u", "sasl_plain_password": "hush", "ssl_password": "hush"}
    config = KafkaConfig(**BASE, security_protocol="SASL_SSL", **secrets)
    assert "hush" not in repr(config)
    with pytest.raises(ValidationError) as raised:
        KafkaConfig(**BASE, **secrets)
    assert "hush" not in str(raised.value)


def test_options_reach_the_client() -> None:
    """Seconds become milliseconds, and a password its value."""
    config = KafkaConfig(
        **BASE, security_protocol="SASL_PLAINTEXT", sasl_plain_username="u", sasl_plain_password="p", request_timeout=1.5
    )
    options = connection_options(config)
    assert options["request_timeout_ms"] == 1500
    assert options["sasl_plain_password"] == "p"
    assert options["ssl_context"] is None


@pytest.mark.parametrize(
    "options",
    [
        {"security_protocol": "SSL", "ssl_cafile": "lacking.pem"},
        {"security_protocol": "SSL", "ssl_certfile": "lacking.pem"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": "lacking:Token"},
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": "builtins:int"},
    ],
)
def test_what_cannot_be_loaded_is_named(options: dict[str, Any]) -> None:
    """A file or class that cannot be loaded is `SourceMisconfigured`, with its option and what was given."""
    *_, (option, given) = options.items()
    with pytest.raises(SourceMisconfigured, match=f"{option} {given!r}"):
        connection_options(KafkaConfig(**BASE | options))


def test_check() -> None:
    """`check` warns of what is legal and rarely meant, and is silent about the defaults."""
    settings = {"advance_timeout": 30.0, "dedupe_retention": 14 * 86_400.0, "ack_timeout": 300.0}
    assert list(CONNECTOR.check(KafkaConfig(**BASE), settings)) == []
    odd = KafkaConfig(**BASE, request_timeout=40, auto_offset_reset="latest", session_timeout=400, max_poll_interval=300)
    said = list(CONNECTOR.check(odd, settings | {"dedupe_retention": 3600.0}))
    assert [line.startswith("warning: ") for line in said] == [True, True, False, True]
    for line, option in zip(said, ("request_timeout", "dedupe_retention", "session_timeout", "auto_offset_reset"), strict=True):
        assert option in line


def test_the_readme_lists_the_options() -> None:
    """The README's table is the schema's; remake it with `headrace.testing.readme.update`."""
    assert is_current(Path(__file__).parents[1] / "README.md", KafkaConfig)
