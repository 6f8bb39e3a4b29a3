"""`headrace publish`: messages from the command line, a file or standard input, through the stream's connector."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from headrace.app.cli import console
from headrace.app.cli.common import ConfigPath, load
from headrace.app.config.problems import nearest
from headrace.app.messages import Headers, new_message, parse_line
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

    if value is not None:
        messages: Iterator[Message] = repeat(new_message(value.encode(), common_key, common_headers), count)
    elif file is not None:
        messages = repeat(new_message(file.read_bytes(), common_key, common_headers), count)
    else:
        if sys.stdin.isatty():
            console.say("reading messages from standard input, one a line; Ctrl-D ends")
        messages = _from_lines(sys.stdin.buffer, common_key, common_headers, json_lines=json_lines)

    async def publish_all() -> None:
        published = 0
        try:
            while batch := list(islice(messages, BATCH)):
                await target.connector.publish(target.connector_config, batch)
                published += len(batch)
        finally:
            console.say(f"{published} messages are published to {stream}")

    asyncio.run(publish_all())


def _from_lines(source: BinaryIO, key: bytes | None, headers: Headers, *, json_lines: bool) -> Iterator[Message]:
    for number, line in enumerate(source, 1):
        line = line.rstrip(b"\r\n")
        if not line:
            continue
        if not json_lines:
            yield new_message(line, key, headers)
            continue
        try:
            message = parse_line(line)
        except ValueError as error:
            raise HeadraceError(f"line {number}: {error}") from error
        yield new_message(message.value, key if message.key is None else message.key, headers + message.headers)


def _header(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"a header is NAME=VALUE, not {text!r}")
    return name, value.encode()
