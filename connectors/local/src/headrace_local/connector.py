"""The connector: what the core finds by the entry point."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace import Connector, Message
from headrace_local.config import IN_MEMORY, LocalConfig
from headrace_local.handle import Handle
from headrace_local.producer import LocalProducer, capabilities


class LocalConnector(Connector):
    name = "local"
    Config = LocalConfig
    capabilities = capabilities(LocalConfig.model_fields["visibility_timeout"].default)

    def create_producer(self, config: LocalConfig) -> LocalProducer:
        return LocalProducer(config)

    async def publish(self, config: LocalConfig, messages: Sequence[Message]) -> None:
        """Append the messages in order, all or none. Also while `serve` runs, from any process on the machine."""
        if not messages:
            return
        handle = Handle.get(config.path)
        try:
            await handle.publish(config.queue, messages)
        finally:
            await handle.aclose()

    def check(self, config: LocalConfig, stream_settings: Mapping[str, Any]) -> Iterable[str]:
        if config.path == IN_MEMORY:
            yield "warning: path: a queue in memory ends with the process, and no other process can publish to it"
            return
        directory = os.path.dirname(os.path.abspath(config.path))
        if not os.path.isdir(directory):
            yield f"path: there is no directory {directory!r}: make it, or name another"
        elif not os.access(config.path if os.path.exists(config.path) else directory, os.W_OK):
            yield f"path: {config.path!r} is not writable"
