"""`headrace demo`."""


def demo() -> None:
    """Demo.

    Example: headrace demo
    """
    raise NotImplementedError
