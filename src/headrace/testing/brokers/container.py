"""A server in a Docker container, by testcontainers, which removes it even where we are killed.

The host's port is fixed when the container is made, so that a restart keeps it. testcontainers is imported late: the extra
`headrace[testing]` brings it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from headrace.testing.brokers.process import LOG_LINES, STOP_SECONDS
from headrace.testing.brokers.server import BrokerUnavailable, Kind


class Container:
    """A container of `image` whose `port` is the loopback's `host_port`.

    Raises `BrokerUnavailable` where no Docker engine answers, and at `start` where the engine cannot run the image.
    """

    kind: Kind = "docker"

    def __init__(
        self,
        image: str,
        *,
        port: int,
        host_port: int,
        environment: Mapping[str, str],
        command: Sequence[str] = (),
    ) -> None:
        require_engine()
        from testcontainers.core.container import DockerContainer

        self._image = image
        self._described = DockerContainer(image, command=list(command) or None, env=dict(environment))  # type: ignore[arg-type]
        self._described.ports[f"{port}/tcp"] = ("127.0.0.1", host_port)  # type: ignore[assignment]  # docker takes a pair
        self._container: Any = None

    def start(self) -> None:
        import docker

        if self._container is not None:
            self._container.start()
            return
        try:
            self._described.start()
        except docker.errors.DockerException as error:
            raise BrokerUnavailable(f"Docker does not run {self._image}: {error}") from error
        self._container = self._described.get_wrapped_container()

    def stop(self) -> None:
        self._container.stop(timeout=int(STOP_SECONDS))

    def kill(self) -> None:
        self._container.kill()
        self._container.wait()

    def close(self) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None

    def is_running(self) -> bool:
        if self._container is None:
            return False
        self._container.reload()
        return bool(self._container.status == "running")

    def log(self) -> str:
        return "" if self._container is None else str(self._container.logs(tail=LOG_LINES).decode(errors="replace"))


def pull(image: str) -> None:
    """Have the engine fetch an image, unless it has it. Raises `BrokerUnavailable`."""
    require_engine()
    import docker
    from testcontainers.core.docker_client import DockerClient

    try:
        images = DockerClient().client.images
        try:
            images.get(image)
        except docker.errors.ImageNotFound:
            images.pull(image)
    except docker.errors.DockerException as error:
        raise BrokerUnavailable(f"Docker has no image {image}: {error}") from error


def require_engine() -> None:
    """Raise `BrokerUnavailable` unless a Docker engine answers on this machine.

    Asked with a bare connection: the client library leaks its socket where nobody listens.
    """
    try:
        from testcontainers.core.docker_client import get_docker_host
    except ImportError as error:
        raise BrokerUnavailable(f"Docker is not tried without testcontainers ({error})") from error
    host = get_docker_host() or "unix:///var/run/docker.sock"
    parts = urlsplit(host)
    address: str | tuple[str, int]
    if parts.scheme == "unix":
        family, address = socket.AF_UNIX, parts.path
    elif parts.hostname in ("localhost", "127.0.0.1"):
        family, address = socket.AF_INET, (parts.hostname, parts.port or 2375)
    else:
        raise BrokerUnavailable(f"the Docker engine {host} is not on this machine")
    with socket.socket(family) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(address)
        except OSError as error:
            raise BrokerUnavailable(f"no Docker engine answers at {host} ({error.strerror or error})") from error
