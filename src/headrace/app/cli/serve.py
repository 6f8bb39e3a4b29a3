"""`headrace serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.app import serve as sidecar
from headrace.app.cli.common import ConfigPath
from headrace.app.logs import Format, Level


def serve(
    config: ConfigPath,
    log_level: Annotated[Level, typer.Option(help="The least level that is logged.")] = "info",
    log_format: Annotated[Format, typer.Option(help="auto: a console where somebody watches, else JSON lines.")] = "auto",
) -> None:
    """Run the streams and triggers of a configuration, and dispatch what they derive.

    SIGTERM and SIGINT drain: no new messages, what is in hand is finished, stored and settled, within `shutdown_timeout`;
    a second one stops at once. SIGHUP reads the configuration again and restarts only what changed.

    Example: headrace serve headrace.yaml
    """
    sidecar.serve(config, log_level=log_level, log_format=log_format)
