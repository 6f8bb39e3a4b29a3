"""A connector's table of options, made from its schema, so that a README and the code cannot differ.

Put the table between `<!-- options -->` and `<!-- /options -->`; `update` rewrites it, and a test of the connector says
`assert is_current(README, Config)`.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

__all__ = ["is_current", "options_table", "update"]

BEGIN, END = "<!-- options -->\n", "<!-- /options -->"


def options_table(schema: type[BaseModel]) -> str:
    """The options of a connector's `Config` as a Markdown table: name, default, what it does."""
    lines = ["| option | default | what it does |", "|---|---|---|"]
    for name, field in schema.model_fields.items():
        description = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{field.alias or name}` | {_default(field)} | {description} |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "none"
    return f"`{json.dumps(value, default=str)}`".replace('`"', "`").replace('"`', "`")


def update(readme: Path, schema: type[BaseModel]) -> None:
    """Write the table of the schema into a README."""
    readme.write_text(_with_table(readme.read_text(), schema))


def is_current(readme: Path, schema: type[BaseModel]) -> bool:
    """Whether a README has the table of the schema. Raises `ValueError` where it has no place for one."""
    text = readme.read_text()
    return _with_table(text, schema) == text


def _with_table(text: str, schema: type[BaseModel]) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"no place for the table of options: put {BEGIN.strip()} and {END} on lines of their own")
    return before + begin + options_table(schema) + end + after
