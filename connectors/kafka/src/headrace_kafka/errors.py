"""What aiokafka's errors mean to a user: worth another try, or which option to look at."""

from __future__ import annotations

import ssl

from aiokafka import errors
from aiokafka.errors import KafkaError

from headrace import HeadraceError, SourceMisconfigured, SourceUnavailable
from headrace_kafka.config import KafkaConfig


class FencedInstanceIdError(errors.BrokerResponseError):  # type: ignore[misc]
    """The broker's word for two members with one `group.instance.id`. aiokafka has no name for it, and would say "unknown"."""

    errno = 82
    message = "FENCED_INSTANCE_ID"
    description = "another member joined with the same group.instance.id"


errors.kafka_errors.setdefault(FencedInstanceIdError.errno, FencedInstanceIdError)


def explain(error: BaseException, config: KafkaConfig) -> HeadraceError:
    """What an error of aiokafka means: worth another try, or which option to look at. Errors of ours stay as they are."""
    said = str(error) or type(error).__name__
    match error:
        case HeadraceError():
            return error
        case ssl.SSLError():
            hint = "the broker may not speak TLS there, or ssl_cafile does not know who signed its certificate"
            return SourceMisconfigured(f"TLS with {config.servers} failed: {said} (security_protocol, ssl_*: {hint})")
        case errors.SaslAuthenticationFailed() | errors.AuthenticationFailedError():
            return SourceMisconfigured(
                f"{config.servers} refuses the credentials (sasl_plain_username, sasl_plain_password, sasl_mechanism): {said}"
            )
        case errors.UnsupportedSaslMechanismError() | errors.IllegalSaslStateError() | errors.AuthenticationMethodNotSupported():
            return SourceMisconfigured(
                f"{config.servers} does not offer this authentication (sasl_mechanism, security_protocol): {said}"
            )
        case KafkaError() if FencedInstanceIdError.__name__ in said:  # aiokafka passes it on as text
            return same_instance_id(config)
        case errors.GroupAuthorizationFailedError():
            return SourceMisconfigured(f"the user may not read as group_id {config.group_id!r}: {said}")
        case errors.TopicAuthorizationFailedError():
            return SourceMisconfigured(f"the user may not use a topic (topics, topic_pattern or dead_letter_topic): {said}")
        case errors.ClusterAuthorizationFailedError():
            return SourceMisconfigured(f"the user may not write idempotently to the cluster (dead_letter_topic): {said}")
        case errors.InvalidSessionTimeoutError():
            return SourceMisconfigured(f"the brokers do not allow session_timeout {config.session_timeout:g} s: {said}")
        case errors.InconsistentGroupProtocolError():
            return SourceMisconfigured(
                f"group_id {config.group_id!r} has members of another kind (partition_assignment_strategy): {said}"
            )
        case errors.InvalidGroupIdError():
            return SourceMisconfigured(f"the brokers refuse group_id {config.group_id!r}: {said}")
        case errors.UnsupportedCodecError():
            return SourceMisconfigured(f"a message is compressed in a way that this installation cannot read: {said}")
        case errors.RecordTooLargeError():
            return SourceMisconfigured(
                f"a message is larger than max_partition_fetch_bytes {config.max_partition_fetch_bytes}: {said}"
            )
        case errors.MessageSizeTooLargeError() | errors.RecordListTooLargeError():
            return SourceMisconfigured(f"a message is larger than its topic allows (max.message.bytes of the topic): {said}")
        case errors.InvalidTopicError():
            return SourceMisconfigured(f"the brokers refuse the name of a topic (topics or dead_letter_topic): {said}")
        case _:
            return SourceUnavailable(f"Kafka at {config.servers}: {said}")


def same_instance_id(config: KafkaConfig) -> SourceMisconfigured:
    """Two members push each other out."""
    return SourceMisconfigured(
        f"another member of group {config.group_id!r} has the same group_instance_id {config.member_name!r}; give each replica an"
        " id of its own"
    )
