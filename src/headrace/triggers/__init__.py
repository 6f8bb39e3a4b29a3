"""Triggers: the base classes, those that Headrace brings, and how triggers are stored and built again."""

from headrace.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent
from headrace.triggers.encoding import decode_kwargs, encode_kwargs
from headrace.triggers.eventbridge import EventPattern, PatternError
from headrace.triggers.pattern import PatternTrigger
from headrace.triggers.serialization import (
    SerializedTrigger,
    check_round_trip,
    load_trigger,
    load_trigger_class,
    serialize_trigger,
    trigger_path,
)
from headrace.triggers.temporal import DateTimeTrigger, TimeDeltaTrigger

__all__ = [
    "BaseEventTrigger",
    "BaseTrigger",
    "DateTimeTrigger",
    "EventPattern",
    "PatternError",
    "PatternTrigger",
    "SerializedTrigger",
    "TimeDeltaTrigger",
    "TriggerEvent",
    "check_round_trip",
    "decode_kwargs",
    "encode_kwargs",
    "load_trigger",
    "load_trigger_class",
    "serialize_trigger",
    "trigger_path",
]
