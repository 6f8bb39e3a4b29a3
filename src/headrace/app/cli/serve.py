"""`headrace serve`."""

from __future__ import annotations

from headrace.app import serve as sidecar
from headrace.app.cli.common import ConfigPath


def serve(config: ConfigPath) -> None:
    """Run the streams and triggers of a configuration, and dispatch what they derive.

    SIGTERM and SIGINT drain: no new messages, what is in hand is finished, stored and settled, within `shutdown_timeout`;
    a second one stops at once. SIGHUP reads the configuration again and restarts only what changed.

    Example: headrace serve headrace.yaml
    """
    sidecar.serve(config)
