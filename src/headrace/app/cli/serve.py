"""`headrace serve`."""

from headrace.app.cli.common import ConfigPath


def serve(config: ConfigPath) -> None:
    """Serve.

    Example: headrace serve headrace.yaml
    """
    raise NotImplementedError
