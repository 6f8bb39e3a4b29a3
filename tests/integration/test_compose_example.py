"""What Headrace does in `docker-compose.yml`: its configuration, with the other services' names replaced by real servers here."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

import pytest

from headrace.testing.brokers import Kafka, PostgreSQL
from headrace.testing.brokers.process import free_port
from headrace.testing.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]  # starts servers, and three processes of ours

EXAMPLE = Path(__file__).parents[2] / "examples" / "docker-compose" / "headrace.yaml"


def is_ready(port: int) -> bool:
    """As the compose file's health check asks."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as response:
            return response.status == 200
    except (HTTPError, URLError, ConnectionError):
        return False


def test_a_published_order_reaches_the_log(kafka: Kafka, postgresql: PostgreSQL, tmp_path: Path) -> None:
    """Ready, it takes an order from Kafka, derives from the one that matches, and dispatches it."""
    database = urlsplit(postgresql.create_database())
    port = free_port()
    config = tmp_path / "headrace.yaml"
    text = EXAMPLE.read_text()
    for there, here in {
        "host: 0.0.0.0": f"host: 127.0.0.1\n  port: {port}",
        "}/headrace": f"}}{database.path}",
        "[orders]": f"[{kafka.create_topic('compose.orders', partitions=4)}]",
        " orders.dead": f" {kafka.create_topic('compose.orders.dead')}",
    }.items():
        assert text.count(there) == 1
        text = text.replace(there, here)
    config.write_text(text)
    environment = {
        **os.environ,
        "POSTGRES_PASSWORD": database.password or "",
        "POSTGRES_HOST": f"{database.hostname}:{database.port}",
        "HEADRACE_TOKEN": "secret",
        "KAFKA": kafka.address,
    }
    headrace = [sys.executable, "-m", "headrace.app.cli"]
    log = tmp_path / "serve.log"
    with log.open("w") as output:
        serve = subprocess.Popen([*headrace, "serve", str(config)], env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: is_ready(port) or serve.poll() is not None, seconds=40.0)
        assert serve.poll() is None, log.read_text()
        orders = '{"region": "us", "amount": 250}\n{"region": "eu", "amount": 251}\n'
        publish = [*headrace, "publish", str(config), "orders"]
        subprocess.run(publish, input=orders, text=True, env=environment, check=True, timeout=30)
        wait_until(lambda: "251" in log.read_text(), seconds=30.0)
        serve.terminate()
        assert serve.wait(30.0) == 0
        assert "250" not in log.read_text()
    finally:
        serve.kill()
        serve.wait()
