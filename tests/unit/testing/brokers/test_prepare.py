"""`python -m headrace.testing.brokers`: what is fetched before the tests, shown with programs of the test's own on PATH."""

import os
from pathlib import Path

import pytest

from headrace.testing.brokers import Kafka, PostgreSQL, container, postgresql
from headrace.testing.brokers.__main__ import main
from headrace.testing.brokers.kafka_installation import JAVA, VERSION, find_java, install


class Machine:
    """A machine with nothing on its PATH but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, program: str, script: str) -> None:
        path = self.folder / program
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A machine without addresses, Docker, Java, Maven or PostgreSQL, where we are root."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    for name in ("HEADRACE_KAFKA", "HEADRACE_POSTGRESQL", "HEADRACE_REQUIRE_BROKERS", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setattr(postgresql, "DEBIAN", tmp_path / "no-debian")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return Machine(programs)


def java(version: str) -> str:
    return f"""echo 'openjdk version "{version}" 2025-04-15' >&2"""


def test_what_is_missing_is_installed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """As root with apt-get, the package comes, after one update of the lists."""
    machine.has(
        "apt-get",
        f'echo "$@" >> {machine.folder}/calls; printf "#!/bin/sh\\n" > {machine.folder}/initdb; chmod +x {machine.folder}/initdb',
    )
    assert main(["postgresql"]) == 0
    assert (machine.folder / "calls").read_text().splitlines() == ["update", "install --yes --no-install-recommends postgresql"]
    assert "postgresql: a process on this machine" in capsys.readouterr().out


def test_what_is_there_is_not_installed(machine: Machine) -> None:
    """With the programs on PATH nothing is asked of apt-get."""
    machine.has("apt-get", "exit 1")
    machine.has("initdb", "exit 0")
    assert main(["postgresql"]) == 0


def test_what_cannot_be_had_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each way and its reason are in one line; that is an error only where the server is required."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert (
        "kafka: not to be had, so tests that need it are skipped: HEADRACE_KAFKA is not set; no Docker engine answers" in printed
    )
    assert "Debian's packages default-jre-headless maven" in printed
    assert "Debian's packages postgresql" in printed
    monkeypatch.setenv("HEADRACE_REQUIRE_BROKERS", "kafka")
    assert main(["postgresql"]) == 0
    assert main([]) == 1
    assert "kafka: not to be had, so tests that need it fail" in capsys.readouterr().out


def test_an_installation_that_fails_shows_its_output(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """What apt-get printed is in the reason."""
    machine.has("apt-get", "echo the disk is full; exit 100")
    main(["postgresql"])
    assert "apt-get update failed:\nthe disk is full" in capsys.readouterr().out


def test_only_root_installs(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Others are told what would help."""
    machine.has("apt-get", f"touch {machine.folder}/called")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    main(["postgresql"])
    assert "only root can install them" in capsys.readouterr().out
    assert not (machine.folder / "called").exists()


def test_an_address_needs_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that runs elsewhere is not prepared for."""
    monkeypatch.setenv("HEADRACE_KAFKA", "far:1")
    assert main(["kafka"]) == 0
    assert capsys.readouterr().out == "kafka: at the address in HEADRACE_KAFKA\n"


def test_an_unknown_name_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the names that there are."""
    assert main(["kafak"]) == 2
    assert "unknown: kafak; there are kafka, postgresql" in capsys.readouterr().err


def test_java_must_be_new_enough(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME comes before PATH; one that is too old is named with its version."""
    with pytest.raises(container.BrokerUnavailable, match=r"java is not installed \(Apache Kafka .* needs Java 17 or later"):
        find_java()
    machine.has("java", java("11.0.2"))
    with pytest.raises(container.BrokerUnavailable, match=rf"java is version 11 .* needs Java {JAVA} or later"):
        find_java()
    home = tmp_path / "jdk" / "bin"
    home.mkdir(parents=True)
    Machine(home).has("java", java("21.0.1"))
    monkeypatch.setenv("JAVA_HOME", str(home.parent))
    assert find_java()[0] == str(home / "java")


def test_jars_are_gathered_once(machine: Machine) -> None:
    """Maven fills a folder of the cache; the next time nothing is fetched. What fails leaves nothing that looks done."""
    machine.has("java", java("17.0.1"))
    machine.has("mvn", "echo no route; exit 1")
    with pytest.raises(container.BrokerUnavailable, match="no route"):
        install()
    machine.has("mvn", 'for last; do :; done; mkdir -p "${last#*=}"; touch "${last#*=}/kafka.jar"')
    folder = install().folder
    assert [jar.name for jar in (folder / "jars").iterdir()] == ["kafka.jar"]
    assert VERSION in folder.name
    machine.has("mvn", "exit 1")
    assert install().folder == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted([folder.name, "kafka.lock"])


def test_another_java_has_another_folder(machine: Machine) -> None:
    """What is made with a Java (the archive of classes) is of no use to another."""
    machine.has("mvn", 'for last; do :; done; mkdir -p "${last#*=}"')
    machine.has("java", java("17.0.1"))
    first = install()
    machine.has("java", java("21.0.1"))
    assert install().folder != first.folder


def test_each_server_names_what_it_needs() -> None:
    """The packages and the image are what the documentation says."""
    assert Kafka.packages == ("default-jre-headless", "maven")
    assert Kafka.image == f"apache/kafka:{VERSION}"
    assert PostgreSQL.packages == ("postgresql",)
