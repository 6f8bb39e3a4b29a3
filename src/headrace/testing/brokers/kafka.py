"""Apache Kafka: one KRaft node, quick enough for tests.

Ended by SIGKILL and started again it has its data, as after a crash of the process. What it needs on this machine is in
`kafka_installation.py`.
"""

from __future__ import annotations

import shutil
import socket
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from headrace.testing.brokers.container import Container
from headrace.testing.brokers.kafka_installation import VERSION, Installation, as_properties, install, node_properties
from headrace.testing.brokers.kafka_version import metadata_version
from headrace.testing.brokers.process import LocalProcess, free_port
from headrace.testing.brokers.server import Backend, Given, Server
from headrace.testing.waiting import wait_until

DEFAULT_SETTINGS: Mapping[str, str] = {
    "num.partitions": "1",
    # A topic that is missing stays missing, so that a test sees what a misspelt one does.
    "auto.create.topics.enable": "false",
    # One node, and internal topics that are made at once.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Killed and started again, the broker may not register before its old session is over.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # No wait for more members, and members that may be declared dead soon.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Records with timestamps of long ago stay, unless their topic's own config says otherwise.
    "log.retention.ms": "-1",
    # What a topic's own config asks for (retention.ms, segment.ms, cleanup.policy=compact) is done within a second.
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "offsets.retention.check.interval.ms": "1000",
    # Small.
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
}

_LISTENERS = ("listeners", "advertised.listeners", "listener.security.protocol.map")


class Kafka(Server):
    """An Apache Kafka. `address` is `host:port`, a bootstrap server. Topics are not made by themselves: `create_topic`."""

    name: ClassVar[str] = "kafka"
    title: ClassVar[str] = "Apache Kafka"
    image: ClassVar[str] = f"apache/kafka:{VERSION}"
    packages: ClassVar[tuple[str, ...]] = ("default-jre-headless", "maven")

    @classmethod
    def at_address(cls, address: str, variable: str) -> Self:
        server = cls(Given(variable), address, "")
        server._wait_until_it_answers()
        level = metadata_version(*server._first_broker())
        server.version = "of an old kind" if level is None else f"with metadata.version {level}"
        return server

    @classmethod
    def in_docker(cls, settings: Mapping[str, str]) -> Self:
        port = free_port()
        node = node_properties(listen="0.0.0.0", port=9092, outside=port, controller=9093, data="/var/lib/kafka/data")
        properties = _all_properties(node, settings)
        environment = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in properties.items()}
        container = Container(cls.image, port=9092, host_port=port, environment=environment)
        return cls._started(container, port)

    @classmethod
    def prepare(cls) -> None:
        kafka = install()
        kafka.format()
        if not kafka.classes.exists():  # the classes that a broker loads, for every later one: half the time to start
            gathered = kafka.folder / f"{uuid.uuid4().hex}.jsa"
            with cls._run(kafka, {}, f"-XX:ArchiveClassesAtExit={gathered}") as server:
                server.create_topic("warm-up")
                server.stop()
            if gathered.exists():  # not every Java can
                gathered.rename(kafka.classes)

    @classmethod
    def on_this_machine(cls, settings: Mapping[str, str]) -> Self:
        kafka = install()
        return cls._run(kafka, settings, *kafka.fast_start())

    @classmethod
    def _run(cls, kafka: Installation, settings: Mapping[str, str], *options: str) -> Self:
        port = free_port()
        process = LocalProcess("kafka", kafka.command("kafka.Kafka", "server.properties", options=options))
        data = process.folder / "data"
        node = node_properties(listen="127.0.0.1", port=port, outside=port, controller=free_port(), data=data)
        try:
            shutil.copytree(kafka.format(), data)
            (process.folder / "server.properties").write_text(as_properties(_all_properties(node, settings)))
        except BaseException:
            process.close()
            raise
        return cls._started(process, port)

    @classmethod
    def _started(cls, backend: Backend, port: int) -> Self:
        server = cls(backend, f"127.0.0.1:{port}", VERSION)
        try:
            server._start()
        except BaseException:
            backend.close()
            raise
        return server

    def answers(self) -> bool:
        try:
            socket.create_connection(self._first_broker(), 1.0).close()  # cheaper than a client while there is nobody
        except OSError:
            return False
        from confluent_kafka import KafkaException

        try:
            return bool(self._admin().list_topics(timeout=5.0).brokers)
        except KafkaException:
            return False

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic; returns its name when it may be used. `config` is the topic's own (`{"retention.ms": "1000"}`).

        Raises `confluent_kafka.KafkaException`, also where it exists.
        """
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self._admin()  # kept: its requests end with it
        admin.create_topics([topic], operation_timeout=30.0)[name].result(60.0)
        wait_until(lambda: len(self.partitions(name)) == partitions)  # the broker learns of it after the controller
        return name

    def delete_topic(self, name: str) -> None:
        """Remove a topic. Its name is free when this returns."""
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=30.0)[name].result(60.0)
        wait_until(lambda: not self.partitions(name))

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic that have a leader; none if it is not there."""
        found = self._admin().list_topics(timeout=20.0).topics.get(topic)
        return sorted(number for number, state in found.partitions.items() if state.leader >= 0) if found else []

    def _first_broker(self) -> tuple[str, int]:
        host, _, port = self.address.split(",")[0].rpartition(":")
        return host, int(port)

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})


def _all_properties(node: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Listeners in `settings` come beside the node's own; anything else replaces what there is."""
    beside = {name: f"{node[name]},{settings[name]}" for name in _LISTENERS if name in settings}
    return {**node, **DEFAULT_SETTINGS, **settings, **beside}
