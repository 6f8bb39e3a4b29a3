"""Kafka as Headrace's app knows it: the schema, the producer, publishing, and what a config should not say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from aiokafka.errors import KafkaError

from headrace import Connector, Message, SharedStreamProducer, SourceMisconfigured, SourceUnavailable
from headrace_kafka.client import require_topics, send, start_producer, stop
from headrace_kafka.config import KafkaConfig
from headrace_kafka.errors import explain
from headrace_kafka.producer import CAPABILITIES, KafkaProducer

DEFAULT_RETENTION: Final = 7 * 86_400.0
"""Kafka keeps messages, and the positions of a group without members, for seven days if nobody says otherwise."""


class KafkaConnector(Connector):
    """Apache Kafka, and what speaks its protocol."""

    name = "kafka"
    Config = KafkaConfig
    capabilities = CAPABILITIES

    def create_producer(self, config: KafkaConfig) -> SharedStreamProducer:
        return KafkaProducer(config)

    async def publish(self, config: KafkaConfig, messages: Sequence[Message]) -> None:
        """Publish to the stream's topic, with `acks=all` and idempotence. The key decides the partition."""
        if len(config.topics) != 1:
            raise SourceMisconfigured("publishing needs a stream that names exactly one topic in topics")
        (topic,) = config.topics
        producer = await start_producer(config)
        try:
            await require_topics(producer, config, topics=config.topics)
            async with asyncio.timeout(config.request_timeout):
                futures = [await send(producer, topic, message, list(message.headers)) for message in messages]
                await asyncio.gather(*futures)
        except TimeoutError:
            raise SourceUnavailable(f"topic {topic!r} did not acknowledge within {config.request_timeout:g} s") from None
        except KafkaError as error:
            raise explain(error, config) from error
        finally:
            await stop(producer)

    def check(self, config: KafkaConfig, stream_settings: Mapping[str, Any]) -> Iterator[str]:
        if config.request_timeout >= stream_settings.get("advance_timeout", float("inf")):
            yield (
                f"warning: request_timeout {config.request_timeout:g} s is not below the stream's advance_timeout, so a commit"
                " that gets no answer is cut short before it can say why"
            )
        if stream_settings.get("dedupe_retention", float("inf")) < DEFAULT_RETENTION:
            yield (
                "warning: dedupe_retention is shorter than the 7 days for which Kafka keeps messages by default: when the group's"
                " position is set back, what was derived before that is derived again"
            )
        if config.session_timeout > config.max_poll_interval:
            yield "session_timeout is longer than max_poll_interval"
        if config.security_protocol == "SASL_PLAINTEXT" and config.sasl_mechanism == "PLAIN":
            yield "warning: security_protocol SASL_PLAINTEXT with PLAIN sends the password unencrypted"
        if config.auto_offset_reset == "latest":
            yield "warning: auto_offset_reset latest skips what is in a partition before the group has a position in it"
        if not config.ssl_check_hostname:
            yield "warning: ssl_check_hostname false trusts any host that has a certificate of these authorities"
