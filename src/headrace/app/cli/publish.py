"""`headrace publish`: messages from the command line, a file or standard input, through the stream's connector."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer

from headrace.app.cli import console
from headrace.app.cli.common import ConfigPath, load
from headrace.app.config.problems import nearest
from headrace.connector import Message
from headrace.errors import HeadraceError

BATCH = 500
"""Messages that are published at once."""


def publish(
    config: ConfigPath,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name in the configuration.", show_default=False)],
    value: Annotated[str | None, typer.Option(help="The value of one message.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A file whose bytes are the value.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Option(help="The key, of every message.", show_default=False)] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header, of every message (repeatable).", show_default=False)
    ] = None,
    json_lines: Annotated[
        bool, typer.Option("--json-lines", help='Each input line is {"value": …, "key": …, "headers": {…}}.')
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Publish the message of --value or --file so many times.")] = 1,
) -> None:
    """Publish messages to a stream: one value, one file, or each line of standard input.

    Returns when the broker has them durably, and says how many they are.

    Example: headrace publish headrace.yaml orders --key 42 --value '{"region": "eu", "amount": 130}'
    """
    if value is not None and file is not None:
        raise typer.BadParameter("give --value or --file, not both")
    if json_lines and (value is not None or file is not None):
        raise typer.BadParameter("--json-lines is about standard input: it goes with neither --value nor --file")
    if count > 1 and value is None and file is None:
        raise typer.BadParameter("--count needs --value or --file")
    common_key = None if key is None else key.encode()
    common_headers = tuple(_header(text) for text in header or ())
    loaded = load(config)
    if stream not in loaded.streams:
        raise HeadraceError(f"there is no stream {stream!r}{nearest(stream, loaded.streams)}")
    target = loaded.streams[stream]

    def make(value: bytes | None, key: bytes | None = None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Message:
        key = common_key if key is None else key
        return Message(value=value, key=key, headers=common_headers + headers, id="", source=stream, timestamp=time.time())

    if value is not None or file is not None:
        content = value.encode() if value is not None else file.read_bytes() if file is not None else b""
        messages: Iterable[Message] = (make(content) for _ in range(count))
    else:
        if sys.stdin.isatty():
            console.say("reading messages from standard input, one a line; Ctrl-D ends")
        lines = _lines(sys.stdin.buffer)
        messages = (make(*_parse(number, line)) for number, line in lines) if json_lines else (make(line) for _, line in lines)

    async def publish_all() -> None:
        published = 0
        try:
            remaining = iter(messages)
            while batch := list(islice(remaining, BATCH)):
                await target.connector.publish(target.connector_config, batch)
                published += len(batch)
        finally:
            console.say(f"{published} messages are published to {stream}")

    asyncio.run(publish_all())


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(source, 1):
        if line := line.rstrip(b"\r\n"):
            yield number, line


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"a header is NAME=VALUE, not {text!r}")
    return name, value.encode()


def _parse(number: int, line: bytes) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    """Value, key and headers of a JSON line. A string or null is taken as it is, anything else as JSON."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise HeadraceError(f"line {number} is not JSON: {error}") from error
    headers = data.get("headers") or {} if isinstance(data, dict) else None
    if (
        not isinstance(data, dict)
        or "value" not in data
        or not isinstance(headers, Mapping)
        or data.keys() - {"value", "key", "headers"}
    ):
        raise HeadraceError(f'line {number}: expected {{"value": …}}, and "key" and "headers" if there are any')
    return _bytes(data["value"]), _bytes(data.get("key")), tuple((str(name), _bytes(value)) for name, value in headers.items())


def _bytes(value: Any) -> bytes | None:
    return None if value is None else value.encode() if isinstance(value, str) else orjson.dumps(value)
