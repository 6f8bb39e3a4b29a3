"""`python -m headrace.testing.brokers [kafka] [postgresql]`: get ready what tests will launch, and say what there is.

What a server needs on this machine is fetched now, so that no test waits for it: the jars, the image, and, as root where
there is apt-get, Debian's packages. Exits with 1 if a server that `HEADRACE_REQUIRE_BROKERS` names is not to be had.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from headrace.testing.brokers import SERVERS, BrokerUnavailable, Server, address_variable, required
from headrace.testing.brokers.container import pull
from headrace.testing.brokers.process import run_to_end
from headrace.testing.brokers.server import ProgramMissing


def prepare(server: type[Server]) -> str:
    """Make the first way that is open quick, and return what it is. Raises `BrokerUnavailable`."""
    variable = address_variable(server.name)
    if variable in os.environ:
        return f"at the address in {variable}"
    reasons = [f"{variable} is not set"]
    try:
        pull(server.image)
        return f"the Docker image {server.image}"
    except BrokerUnavailable as error:
        reasons.append(str(error))
    try:
        try:
            server.prepare()
        except ProgramMissing:
            _install(server.packages)
            server.prepare()
    except BrokerUnavailable as error:
        reasons.append(str(error))
        raise BrokerUnavailable("; ".join(reasons)) from error
    return "a process on this machine"


def _install(packages: Sequence[str]) -> None:
    """Install Debian packages. Raises `BrokerUnavailable` where this may not, or cannot, be done."""
    wanted = " ".join(packages)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise BrokerUnavailable(f"Debian's packages {wanted} would bring what it needs; only root can install them, with apt-get")
    print(f"installing {wanted} ...", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", *packages]):
        run_to_end(command, env=environment)


def main(names: Sequence[str]) -> int:
    """Prepare the named servers (default: all) and return the exit code."""
    if unknown := sorted(set(names) - set(SERVERS)):
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    missing = set()
    for name in names or SERVERS:
        try:
            print(f"{name}: {prepare(SERVERS[name])}", flush=True)
        except BrokerUnavailable as error:
            missing.add(name)
            print(f"{name}: not to be had, so tests that need it {'fail' if name in required() else 'are skipped'}: {error}")
    return 1 if missing & required() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
