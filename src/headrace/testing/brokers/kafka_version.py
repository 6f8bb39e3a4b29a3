"""What a running Kafka tells of its version.

The protocol has no release number. It has the features that a cluster has agreed on, and `metadata.version` among them grows
with every release. https://kafka.apache.org/protocol (ApiVersions, version 3), read 2026-11-30.
"""

from __future__ import annotations

import socket
import struct
from io import BytesIO

_API_VERSIONS, _VERSION, _FINALIZED_FEATURES = 18, 3, 2


def metadata_version(host: str, port: int, timeout: float = 10.0) -> int | None:
    """Ask a broker for the level of its cluster's `metadata.version`; None if it has none. Raises `OSError`."""
    name = b"\x09headrace" + b"\x02" + b"1"  # compact strings: their length plus one, then the bytes
    request = struct.pack(">hhih", _API_VERSIONS, _VERSION, 0, -1) + b"\x00" + name + b"\x00"
    with socket.create_connection((host, port), timeout) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            return _features(BytesIO(answer.read(size))).get("metadata.version")


def _features(body: BytesIO) -> dict[str, int]:
    body.read(4 + 2)  # the request's number, an error code
    for _ in range(_varint(body) - 1):
        body.read(3 * 2)  # a kind of request, its versions
        _skip_tags(body)
    body.read(4)  # the throttle time
    for _ in range(_varint(body)):
        tag, size = _varint(body), _varint(body)
        if tag == _FINALIZED_FEATURES:
            return dict(_feature(body) for _ in range(_varint(body) - 1))
        body.read(size)
    return {}


def _feature(body: BytesIO) -> tuple[str, int]:
    name = body.read(_varint(body) - 1).decode()
    level, _ = struct.unpack(">hh", body.read(4))
    _skip_tags(body)
    return name, level


def _skip_tags(body: BytesIO) -> None:
    for _ in range(_varint(body)):
        _varint(body)
        body.read(_varint(body))


def _varint(body: BytesIO) -> int:
    value = shift = 0
    while (byte := body.read(1)[0]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value | byte << shift
