"""Payloads as JSON text, and the reasons why some cannot be.

orjson is fast and too lenient for us: it writes NaN and Infinity as null. What it wrote is therefore searched for the traces
that such values leave, and only then is the payload itself walked to find them. The walk also puts the path of the culprit
into the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import orjson

from headrace.errors import Unstorable

_MAX_DEPTH = 254  # orjson's own


def encode(value: Any, *, limit: int, name: str = "payload") -> str:
    """Encode as JSON, keys in their order. Raises `Unstorable` that says where and why: bytes and other objects, NaN and
    Infinity, NUL characters, keys that are not strings, integers beyond 64 bits, more than `limit` bytes."""
    try:
        data = orjson.dumps(value)
    except TypeError as error:
        raise Unstorable(_first_fault(value, name) or f"{name}: {error}") from None
    if len(data) > limit:
        raise Unstorable(f"{name} has {len(data)} bytes as JSON, and {limit} are allowed")
    if (b"null" in data or b"\\u0000" in data) and (fault := _first_fault(value, name)):
        raise Unstorable(fault)
    return data.decode()


def clean(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Make any text storable: NUL characters and lone surrogates escaped, cut to `limit` characters."""
    if "\0" in text or not text.isascii():
        text = text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    return f"…{text[1 - limit :]}" if keep_end else f"{text[: limit - 1]}…"


def _first_fault(value: Any, name: str) -> str | None:
    """Say which part of a value cannot be stored, and why; None if there is nothing wrong with it."""
    pending: list[tuple[str, Any, int]] = [(name, value, 0)]
    while pending:
        path, node, depth = pending.pop()
        if depth > _MAX_DEPTH:
            return f"{name} is nested more than {_MAX_DEPTH} levels deep"
        if isinstance(node, dict):
            for key in node:
                if not isinstance(key, str):
                    return f"{path} has a key of type {type(key).__name__}, and JSON keys are strings"
                if fault := _leaf_fault(key):
                    return f"a key of {path} {fault}"
        elif fault := _leaf_fault(node):
            return f"{path} {fault}"
        pending.extend((f"{path}{step}", child, depth + 1) for step, child in _children(node))
    return None


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from ((f".{key}" if key.isidentifier() else f"[{key!r}]", child) for key, child in node.items())
    elif isinstance(node, list | tuple):
        yield from ((f"[{position}]", child) for position, child in enumerate(node))
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        yield from ((f".{field.name}", getattr(node, field.name)) for field in dataclasses.fields(node))


def _leaf_fault(node: Any) -> str | None:
    if isinstance(node, float) and not math.isfinite(node):
        return f"is {node}, which JSON cannot hold"
    if isinstance(node, str):
        if "\0" in node:
            return "has a NUL character, which a database cannot hold"
        if not node.isascii() and any("\ud800" <= character <= "\udfff" for character in node):
            return "has a lone surrogate, which is no text"
        return None
    if isinstance(node, int) and not -(2**63) <= node < 2**64:
        return "is an integer beyond 64 bits"
    if isinstance(node, dict | list | tuple) or (dataclasses.is_dataclass(node) and not isinstance(node, type)):
        return None
    try:
        orjson.dumps(node)
    except TypeError:
        return f"is of type {type(node).__name__}, which is no JSON value"
    return None
