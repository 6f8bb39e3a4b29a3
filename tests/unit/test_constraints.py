"""The pinned versions belong to what the projects ask for."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PROJECTS = [TOP / "pyproject.toml", *sorted(TOP.glob("connectors/*/pyproject.toml"))]


def pins(name: str) -> dict[str, str]:
    """The versions in a constraints file, each with at least one hash."""
    text = (TOP / name).read_text()
    return {
        found[1]: found[2] for found in re.finditer(r"^([a-z0-9.-]+)==(\S+)(?: ;.*)? \\\n    --hash=sha256:", text, re.MULTILINE)
    }


def dependencies(project: Path) -> Iterator[str]:
    """What `make setup` installs for a project; extras of others' choice are theirs to install."""
    content = tomllib.loads(project.read_text())
    for requirement in [*content["project"]["dependencies"], *content.get("dependency-groups", {}).get("dev", [])]:
        yield re.split(r"[\[<>=;! ]", requirement)[0].lower().replace("_", "-")


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.parent.name)
def test_every_dependency_is_pinned(project: Path) -> None:
    """After a change of a pyproject, `make constraints` is run."""
    ours = {tomllib.loads(path.read_text())["project"]["name"] for path in PROJECTS}
    assert set(dependencies(project)) - ours <= set(pins("constraints.txt"))


def test_airflow_is_the_version_that_we_compare_with() -> None:
    """The differential test and the benchmarks name it."""
    pinned = pins("tests/airflow-constraints.txt")
    assert (pinned["apache-airflow-core"], pinned["apache-airflow-task-sdk"]) == ("3.3.2", "1.3.2")


@pytest.mark.parametrize("name", ["constraints.txt", "tests/airflow-constraints.txt"])
def test_pins_say_nothing_of_the_machine_that_made_them(name: str) -> None:
    """No address of an index and no path: they hold anywhere."""
    assert re.findall(r"https?://|file:|^/|(?<=\s)/\w", (TOP / name).read_text(), re.MULTILINE) == []
