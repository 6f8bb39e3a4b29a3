"""The table of options in a README comes from the schema."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, Field

from headrace.testing.readme import is_current, options_table, update


class Config(BaseModel):
    path: str = Field(description="Where | it is.")
    size: int = Field(default=5, description="How many.")
    mode: str = Field(default="fast", description="How.")
    group: str | None = Field(default=None, description="Whose.")
    names: list[str] = Field(default_factory=list, description="Which.")


def test_the_table_has_every_option() -> None:
    """Name, default and description; what must be given is `required`."""
    assert options_table(Config).splitlines()[2:] == [
        "| `path` | required | Where \\| it is. |",
        "| `size` | `5` | How many. |",
        "| `mode` | `fast` | How. |",
        "| `group` | none | Whose. |",
        "| `names` | `[]` | Which. |",
    ]


def test_a_readme_is_updated_and_then_current(tmp_path: Path) -> None:
    """The rest of the text stays as it is."""
    readme = tmp_path / "README.md"
    readme.write_text("before\n\n<!-- options -->\nold\n<!-- /options -->\n\nafter\n")
    assert not is_current(readme, Config)
    update(readme, Config)
    assert is_current(readme, Config)
    text = readme.read_text()
    assert text.startswith("before\n\n<!-- options -->\n| option |")
    assert text.endswith("<!-- /options -->\n\nafter\n")


def test_a_readme_without_a_place_is_an_error(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing")
    with pytest.raises(ValueError, match="no place"):
        is_current(readme, Config)
