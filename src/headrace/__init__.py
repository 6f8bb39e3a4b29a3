"""Headrace triggers DAGs from message brokers: one poll feeds every trigger; what they derive is stored, then acknowledged."""

from headrace.connector import Connector, Message
from headrace.errors import (
    AckTimeout,
    ConfigError,
    HeadraceError,
    SourceMisconfigured,
    SourceUnavailable,
    StreamEnded,
    StreamError,
    SubscriberOverflow,
)
from headrace.streams.batch import EventBatch
from headrace.streams.contract import (
    DEFAULT_ACK_TIMEOUT,
    DEFAULT_SUBSCRIBER_QUEUE_MAX,
    UNORDERED,
    AdvanceItem,
    AdvanceOutcome,
    Capabilities,
    EventInHand,
    LaneLost,
    Rejection,
    SharedStreamProducer,
)
from headrace.streams.manager import SharedStreamManager
from headrace.streams.subscription import reject_shared_stream_event
from headrace.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

__all__ = [
    "DEFAULT_ACK_TIMEOUT",
    "DEFAULT_SUBSCRIBER_QUEUE_MAX",
    "UNORDERED",
    "AckTimeout",
    "AdvanceItem",
    "AdvanceOutcome",
    "BaseEventTrigger",
    "BaseTrigger",
    "Capabilities",
    "ConfigError",
    "Connector",
    "EventBatch",
    "EventInHand",
    "HeadraceError",
    "LaneLost",
    "Message",
    "Rejection",
    "SharedStreamManager",
    "SharedStreamProducer",
    "SourceMisconfigured",
    "SourceUnavailable",
    "StreamEnded",
    "StreamError",
    "SubscriberOverflow",
    "TriggerEvent",
    "reject_shared_stream_event",
]
