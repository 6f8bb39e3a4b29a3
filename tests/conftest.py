"""Fixtures of this repository's own tests; the servers come from `headrace.testing.pytest_plugin`."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def airflow_python() -> Path:
    """The interpreter of an environment that has Airflow's own manager; `make test` builds it."""
    python = Path(__file__).parents[1] / ".cache" / "airflow" / "bin" / "python"
    if not python.exists():
        pytest.skip("no environment with Airflow in it: make test builds one")
    return python
