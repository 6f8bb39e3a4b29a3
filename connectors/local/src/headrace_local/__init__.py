"""Headrace's embedded broker: durable queues in one SQLite file. The connector to copy for a broker of one's own.

Read in this order: `connector` (what the core sees), `config`, `producer` (the contract with the engine), `handle` (one thread
per file), `queue_file` (the broker).
"""

from headrace_local.config import LocalConfig
from headrace_local.connector import LocalConnector
from headrace_local.producer import LocalProducer
from headrace_local.queue_file import DeadLetter, QueueFile

__all__ = ["CONNECTOR", "DeadLetter", "LocalConfig", "LocalConnector", "LocalProducer", "QueueFile"]

CONNECTOR = LocalConnector
