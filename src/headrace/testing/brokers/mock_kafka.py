"""A Kafka that fails as it is told: librdkafka's mock cluster, which any Kafka client can talk to.

It keeps messages, groups and committed offsets in memory, starts in milliseconds and lives in this process, on threads of
its own. It is for faults that a real broker gives only by luck; what a broker does when all is well is asked of a real one
(`launch("kafka")`). It knows no transactions' isolation, no compaction and no static members.

The functions are those of librdkafka's `rdkafka_mock.h`, called through ctypes in the library that `confluent-kafka` brings.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int16, c_int32, c_size_t, c_void_p
from enum import IntEnum
from types import TracebackType
from typing import Any, Self

_PRODUCER = 0
_SILENT = b"0"


class Api(IntEnum):
    """The requests of the Kafka protocol that can be made to fail."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22


class Fault(IntEnum):
    """How a request fails. Any other error code of the protocol may be given as a plain int."""

    DISCONNECT = -195
    """The connection is closed, without an answer."""
    NONE = 0
    """It does not: one request goes through before the next fault."""
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    COORDINATOR_LOADING = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    FENCED_INSTANCE_ID = 82


class MockKafka:
    """A mock cluster; `address` is its bootstrap servers. A context manager."""

    def __init__(self, brokers: int = 1) -> None:
        """Start it with broker ids 1 to `brokers`."""
        self._functions = _functions()
        error = ctypes.create_string_buffer(512)
        config = self._call("rd_kafka_conf_new")
        self._call("rd_kafka_conf_set", config, b"log_level", _SILENT, error, len(error))
        self._client = self._call("rd_kafka_new", _PRODUCER, config, error, len(error))
        if not self._client:
            raise RuntimeError(f"librdkafka gives no client: {error.value.decode()}")
        self._cluster = self._call("rd_kafka_mock_cluster_new", self._client, brokers)
        self._call("rd_kafka_mock_group_initial_rebalance_delay_ms", self._cluster, 0)
        self._call("rd_kafka_mock_start_request_tracking", self._cluster)
        self.address: str = self._call("rd_kafka_mock_cluster_bootstraps", self._cluster).decode()

    def create_topic(self, name: str, partitions: int = 1, replicas: int = 1) -> str:
        """Make a topic; returns its name."""
        self._check("rd_kafka_mock_topic_create", self._cluster, name.encode(), partitions, replicas)
        return name

    def fail_next(self, api: Api, *faults: int) -> None:
        """The next requests of this kind fail, one after the other: a `Fault`, or an error code, for each."""
        codes = (c_int * len(faults))(*faults)
        self._call("rd_kafka_mock_push_request_errors_array", self._cluster, api, len(faults), codes)

    def clear_faults(self, api: Api) -> None:
        """Forget the faults that are still to come."""
        self._call("rd_kafka_mock_clear_request_errors", self._cluster, api)

    def take_down(self, broker: int = 1) -> None:
        """Close the broker's connections and refuse new ones; its data stays."""
        self._check("rd_kafka_mock_broker_set_down", self._cluster, broker)

    def bring_up(self, broker: int = 1) -> None:
        """Undo `take_down`."""
        self._check("rd_kafka_mock_broker_set_up", self._cluster, broker)

    def delay(self, seconds: float, broker: int = 1) -> None:
        """Answer every request this much later; 0 ends it."""
        self._check("rd_kafka_mock_broker_set_rtt", self._cluster, broker, round(seconds * 1000))

    def count_requests(self, api: Api) -> int:
        """How many requests of this kind came since the start, failed ones too."""
        count = c_size_t()
        requests = self._call("rd_kafka_mock_get_requests", self._cluster, byref(count))
        try:
            return sum(self._call("rd_kafka_mock_request_api_key", requests[index]) == api for index in range(count.value))
        finally:
            self._call("rd_kafka_mock_request_destroy_array", requests, count.value)

    def close(self) -> None:
        """End the cluster. A second call does nothing."""
        if self._cluster:
            self._call("rd_kafka_mock_cluster_destroy", self._cluster)
            self._call("rd_kafka_destroy", self._client)
            self._cluster = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _call(self, function: str, *arguments: Any) -> Any:
        return self._functions[function](*arguments)

    def _check(self, function: str, *arguments: Any) -> None:
        if code := self._call(function, *arguments):
            raise ValueError(f"{function}{arguments[1:]} failed: {self._call('rd_kafka_err2str', code).decode()}")


def librdkafka_version() -> str:
    """The version of the library, as `2.16.0`."""
    import confluent_kafka

    return str(confluent_kafka.libversion()[0])


_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "rd_kafka_conf_new": (c_void_p,),
    "rd_kafka_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "rd_kafka_new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "rd_kafka_destroy": (None, c_void_p),
    "rd_kafka_err2str": (c_char_p, c_int),
    "rd_kafka_mock_cluster_new": (c_void_p, c_void_p, c_int),
    "rd_kafka_mock_cluster_destroy": (None, c_void_p),
    "rd_kafka_mock_cluster_bootstraps": (c_char_p, c_void_p),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, c_void_p, c_int32),
    "rd_kafka_mock_topic_create": (c_int, c_void_p, c_char_p, c_int, c_int),
    "rd_kafka_mock_push_request_errors_array": (None, c_void_p, c_int16, c_size_t, POINTER(c_int)),
    "rd_kafka_mock_clear_request_errors": (None, c_void_p, c_int16),
    "rd_kafka_mock_broker_set_down": (c_int, c_void_p, c_int32),
    "rd_kafka_mock_broker_set_up": (c_int, c_void_p, c_int32),
    "rd_kafka_mock_broker_set_rtt": (c_int, c_void_p, c_int32, c_int),
    "rd_kafka_mock_start_request_tracking": (None, c_void_p),
    "rd_kafka_mock_get_requests": (POINTER(c_void_p), c_void_p, POINTER(c_size_t)),
    "rd_kafka_mock_request_api_key": (c_int16, c_void_p),
    "rd_kafka_mock_request_destroy_array": (None, POINTER(c_void_p), c_size_t),
}


def _functions() -> dict[str, Callable[..., Any]]:
    from confluent_kafka import cimpl

    library = ctypes.CDLL(cimpl.__file__)  # its symbols include those of the librdkafka that it is linked with
    functions: dict[str, Callable[..., Any]] = {}
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions
