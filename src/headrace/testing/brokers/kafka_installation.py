"""What an Apache Kafka needs to run here: Java, its jars, and a formatted log folder to copy.

Maven gathers the jars (44 MB) into the cache folder, once. So does all else that costs a JVM's start and is the same every
time: a launch copies it.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from headrace.testing.brokers.cache import cache_folder
from headrace.testing.brokers.process import find_program, run_to_end
from headrace.testing.brokers.server import ProgramMissing

POM = files(__package__).joinpath("kafka-pom.xml").read_text()
_LOGGING = files(__package__).joinpath("kafka-log4j2.properties")


def _version() -> str:
    found = re.search(r"<kafka.version>(.+?)</kafka.version>", POM)
    assert found is not None
    return found[1]


VERSION = _version()
"""The version that is run, here and in Docker."""
JAVA = 17
"""The oldest Java that runs it."""

_JVM = ["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]


@dataclass(frozen=True)
class Installation:
    """A Java, and a folder with the jars in it."""

    java: str
    folder: Path

    @property
    def classes(self) -> Path:
        """An archive of loaded classes, of this Java and these jars; it need not be there."""
        return self.folder / "classes.jsa"

    def fast_start(self) -> list[str]:
        """The JVM options that make use of `classes`, if it is there."""
        return [f"-XX:SharedArchiveFile={self.classes}"] if self.classes.exists() else []

    def command(self, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """The command line that runs a class of the jars."""
        logging = f"-Dlog4j2.configurationFile={_LOGGING}"
        return [self.java, *_JVM, *options, logging, "-cp", f"{self.folder / 'jars'}/*", main_class, *arguments]

    def format(self) -> Path:
        """A formatted log folder, to be copied: made the first time. Raises `BrokerUnavailable`."""
        formatted = self.folder / "formatted"
        with _lock():
            if not formatted.is_dir():
                with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                    config = Path(scratch, "server.properties")
                    node = node_properties(listen="127.0.0.1", port=9092, outside=9092, controller=9093, data=f"{scratch}/data")
                    config.write_text(as_properties(node))
                    arguments = ["format", "--cluster-id", _cluster_id(), "--config", str(config)]
                    run_to_end(self.command("kafka.tools.StorageTool", *arguments))
                    Path(scratch, "data").rename(formatted)
        return formatted


def node_properties(*, listen: str, port: int, outside: int, controller: int, data: Path | str) -> dict[str, str]:
    """What makes it a cluster of one node. It listens at `port`, which clients see as the loopback's `outside`."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{listen}:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{outside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(data),
    }


def install() -> Installation:
    """Find Java and gather the jars, unless they are in the cache. Raises `BrokerUnavailable`."""
    java, java_version = find_java()
    stamp = hashlib.sha256(f"{POM}{java_version}".encode()).hexdigest()[:8]
    folder = cache_folder() / f"kafka-{VERSION}-{stamp}"
    with _lock():
        if not folder.is_dir():
            maven = find_program("mvn", purpose="Maven gathers the jars of Apache Kafka")
            with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
                Path(scratch, "pom.xml").write_text(POM)
                goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}/kafka/jars"]
                run_to_end([maven, "-q", "-B", "--strict-checksums", "-f", f"{scratch}/pom.xml", *goal])
                Path(scratch, "kafka").rename(folder)
    return Installation(java, folder)


def find_java() -> tuple[str, str]:
    """The path of a Java that is new enough, and what it says of its version. Raises `BrokerUnavailable`."""
    purpose = f"Apache Kafka {VERSION} needs Java {JAVA} or later"
    home = os.environ.get("JAVA_HOME")
    java = find_program(*([f"{home}/bin/java"] if home else []), "java", purpose=purpose)
    said = run_to_end([java, "-version"])
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA:
        raise ProgramMissing(f"{java} is version {found[1] if found else 'unknown'} ({purpose})")
    return java, said


def as_properties(settings: Mapping[str, str]) -> str:
    """The text of a properties file."""
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@contextmanager
def _lock() -> Iterator[None]:
    """Two test runs at once: one makes what both need."""
    with (cache_folder() / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _cluster_id() -> str:
    """A random cluster id; one that begins with a dash would read as an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made
