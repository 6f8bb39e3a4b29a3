"""Apache Kafka: one KRaft node, quick enough for tests.

As a process it needs Java 17 and, the first time, Maven, which gathers the jars into the cache folder (44 MB). Ended by
SIGKILL and started again it has its data, as after a crash of the process.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Self

from headrace.testing.brokers.cache import cache_folder
from headrace.testing.brokers.container import Container
from headrace.testing.brokers.process import LocalProcess, find_program, free_port
from headrace.testing.brokers.server import Backend, BrokerUnavailable, Given, Server

POM = files(__package__).joinpath("kafka-pom.xml").read_text()
_found = re.search(r"<kafka.version>(.+?)</kafka.version>", POM)
assert _found is not None
VERSION = _found[1]
"""The version that `local` and `docker` run."""
JAVA = 17
"""The oldest Java that runs it."""

_JVM = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
_FORMATTER, _BROKER = "kafka.tools.StorageTool", "kafka.Kafka"

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


class Kafka(Server):
    """An Apache Kafka. `address` is `host:port`, a bootstrap server. Topics are not made by themselves: `create_topic`."""

    name: ClassVar[str] = "kafka"
    title: ClassVar[str] = "Apache Kafka"
    image: ClassVar[str] = f"apache/kafka:{VERSION}"
    packages: ClassVar[tuple[str, ...]] = ("default-jre-headless", "maven")

    @classmethod
    def at_address(cls, address: str, variable: str) -> Self:
        server = cls(Given(variable), address, "of a version that its protocol does not tell")
        server._wait_until_it_answers()
        return server

    @classmethod
    def in_docker(cls, settings: Mapping[str, str]) -> Self:
        port = free_port()
        properties = _properties(settings, listen="0.0.0.0", inside=9092, outside=port, folder="/var/lib/kafka/data")
        environment = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in properties.items()}
        container = Container(cls.image, port=9092, host_port=port, environment=environment)
        return cls._started(container, port)

    @classmethod
    def prepare(cls) -> None:
        find_java()
        fetch_jars()

    @classmethod
    def on_this_machine(cls, settings: Mapping[str, str]) -> Self:
        java = find_java()
        jars = fetch_jars()
        port = free_port()
        log4j = str(files(__package__).joinpath("kafka-log4j2.properties"))
        base = [java, *_JVM, f"-Dlog4j2.configurationFile={log4j}", "-cp", f"{jars}/*"]
        process = LocalProcess("kafka", lambda folder: [*base, _BROKER, str(folder / "server.properties")])
        try:
            properties = _properties(settings, listen="127.0.0.1", inside=port, outside=port, folder=str(process.folder / "data"))
            config = process.folder / "server.properties"
            config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
            process.run([*base, _FORMATTER, "format", "--cluster-id", _cluster_id(), "--config", str(config)])
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
        host, _, port = self.address.split(",")[0].rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1.0).close()  # cheaper than a client while there is nobody
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
        return name

    def delete_topic(self, name: str) -> None:
        """Remove a topic. Its name is free when this returns."""
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=30.0)[name].result(60.0)

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic; none if it is not there."""
        found = self._admin().list_topics(timeout=20.0).topics.get(topic)
        return sorted(found.partitions) if found else []

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})


def find_java() -> str:
    """The path of a Java that is new enough. Raises `BrokerUnavailable`."""
    home = os.environ.get("JAVA_HOME")
    java = find_program(
        *([Path(home, "bin", "java")] if home else []), "java", purpose=f"Apache Kafka needs Java {JAVA} or later"
    )
    printed = subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30).stderr
    found = re.search(r'version "(\d+)', printed)
    if found is None or int(found[1]) < JAVA:
        raise BrokerUnavailable(
            f"Apache Kafka {VERSION} needs Java {JAVA} or later; {java} is {found[1] if found else 'unknown'}"
        )
    return java


def fetch_jars() -> Path:
    """The folder of Kafka's jars, gathered by Maven the first time. Raises `BrokerUnavailable`."""
    stamp = hashlib.sha256(POM.encode()).hexdigest()[:8]
    jars = cache_folder() / f"kafka-{VERSION}-{stamp}"
    with (cache_folder() / "kafka.lock").open("w") as lock:  # two test runs at once: one fetches
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            maven = find_program("mvn", purpose="Maven gathers the jars of Apache Kafka")
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                Path(folder, "pom.xml").write_text(POM)
                goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}/jars"]
                done = subprocess.run(
                    [maven, "-q", "-B", "--strict-checksums", *goal],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                if done.returncode:
                    raise BrokerUnavailable(f"Maven could not gather the jars of Apache Kafka:\n{done.stdout[-2000:]}")
                shutil.move(f"{folder}/jars", jars)
    return jars


def _properties(settings: Mapping[str, str], *, listen: str, inside: int, outside: int, folder: str) -> dict[str, str]:
    """Everything in `server.properties`. `inside` is the port it listens on, `outside` the one that clients see."""
    controller = free_port()
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{listen}:{inside},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{outside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": folder,
        **DEFAULT_SETTINGS,
        **settings,
    }


def _cluster_id() -> str:
    """A random cluster id; one that begins with a dash would read as an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made
