"""The compose file, read: Docker is not asked. `tests/integration/test_compose_example.py` runs what Headrace does in it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.app.config import load_config
from headrace.testing.brokers import Kafka, PostgreSQL

TOP = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((TOP / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def test_it_has_kafka_postgresql_and_headrace_with_health_checks() -> None:
    """Each service that stays has a health check; the one that does not says when it is done."""
    assert set(SERVICES) == {"kafka", "postgresql", "headrace", "topics"}
    for name in ("kafka", "postgresql", "headrace"):
        assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES["headrace"]["depends_on"] == {
        "kafka": {"condition": "service_healthy"},
        "postgresql": {"condition": "service_healthy"},
        "topics": {"condition": "service_completed_successfully"},
    }


def test_it_runs_the_versions_that_the_tests_run() -> None:
    """One image a server, there and here."""
    assert SERVICES["kafka"]["image"] == SERVICES["topics"]["image"] == Kafka.image
    assert SERVICES["postgresql"]["image"] == PostgreSQL.image


def test_only_the_loopback_can_connect() -> None:
    """No port is open to the network, since the passwords are in the file."""
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert sorted(ports) == ["127.0.0.1:5432:5432", "127.0.0.1:8970:8970", "127.0.0.1:9092:9092"]


def test_volumes_that_are_used_are_declared() -> None:
    """And what is mounted from here is here."""
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {volume for volume in mounted if not volume.startswith(".")} == set(COMPOSE["volumes"])
    assert all((TOP / volume).is_dir() for volume in mounted if volume.startswith("."))


def test_its_configuration_is_a_good_one() -> None:
    """The mounted file is read without a mistake or a warning, and names the other services."""
    environment = {"POSTGRES_PASSWORD": "pass", "HEADRACE_TOKEN": "secret"}
    assert set(environment) <= set(SERVICES["headrace"]["environment"])
    config = load_config(TOP / "examples" / "docker-compose" / "headrace.yaml", environ=environment)
    assert config.warnings == ()
    assert config.store.url == "postgresql://headrace:pass@postgresql/headrace"
    stream = config.streams["orders"].connector_config.model_dump()
    assert stream["bootstrap_servers"] == ("kafka:19092",)
    made = {word.split(":")[0] for word in SERVICES["topics"]["command"][0].split() if ":" in word and "$" not in word}
    assert {*stream["topics"], stream["dead_letter_topic"]} <= made


@pytest.mark.parametrize("line", ["COPY --from=build", 'CMD ["serve", "/etc/headrace/headrace.yaml"]'])
def test_the_image_serves_the_mounted_file(line: str) -> None:
    """The path in the Dockerfile is the one that the compose file mounts."""
    assert line in (TOP / "Dockerfile").read_text()
    assert SERVICES["headrace"]["volumes"] == ["./examples/docker-compose:/etc/headrace:ro"]


def test_the_image_is_built_by_the_uv_that_the_makefile_uses() -> None:
    """One version of uv, and the same constraints."""
    version = next(line for line in (TOP / "Makefile").read_text().splitlines() if line.startswith("UV_VERSION")).split()[-1]
    dockerfile = (TOP / "Dockerfile").read_text()
    assert f"uv=={version}" in dockerfile
    assert "--constraints constraints.txt --build-constraints constraints.txt" in dockerfile
