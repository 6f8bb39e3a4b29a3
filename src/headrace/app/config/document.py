"""A configuration file as plain data that still knows its lines.

YAML is read node by node, so that a key given twice is a mistake, each value can be traced to its line, and `${VAR}` and
`file:` values are replaced as they are met. A value that came from the environment or a file stays text (pydantic turns it
into a number where one is wanted), and its path is noted: such values may be secrets. Mistakes are collected, not raised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

KeyPath = tuple[str | int, ...]

_VARIABLE = re.compile(r"\$(?:\$(?=\{)|\{([^{}]*)\})|\$\{")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(slots=True)
class Document:
    """What a file says: `data`, the line of each key path (from 1), the paths replaced from outside, and the mistakes."""

    path: Path
    environ: Mapping[str, str] = field(repr=False)
    data: Any = field(default=None, repr=False)
    lines: dict[KeyPath, int] = field(default_factory=dict, repr=False)
    substituted: set[KeyPath] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def problem(self, path: KeyPath, text: str) -> None:
        """Note a mistake at a key path, with the line of the nearest key that the file has."""
        near = path
        while near and near not in self.lines:
            near = near[:-1]
        line = f":{self.lines[near]}" if near in self.lines and near else ""
        at = f" {dotted(path)}:" if path else ""
        self.problems.append(f"{self.path}{line}:{at} {text}")

    def is_substituted(self, path: KeyPath) -> bool:
        """Whether anything at or below the path came from the environment or a file."""
        return any(known[: len(path)] == path for known in self.substituted)


def dotted(path: KeyPath) -> str:
    """Write a key path as people do: `streams.orders.topics[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_document(path: Path, *, environ: Mapping[str, str] | None = None) -> Document:
    """Read a YAML (or JSON) file. Every mistake is in `problems`; `data` holds what could be read."""
    document = Document(path, os.environ if environ is None else environ)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        document.problem((), f"cannot be read: {reason}")
        return document
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # JSON may be indented with tabs, YAML may not; a JSON string cannot hold a bare tab
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            document.data = _Builder(document, loader).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        hint = "; quote a ${VAR} within [] and {}" if mark and "${" in "".join(text.splitlines()[: mark.line + 1][-2:]) else ""
        document.problems.append(f"{path}{line}: is not valid YAML: {error.problem or error.context}{hint}")
    except (yaml.YAMLError, RecursionError):
        document.problem((), "is not valid YAML")
    finally:
        loader.dispose()
    return document


class _Builder:
    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self._document = document
        self._loader = loader
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            value = self._loader.construct_object(node)
            return self._replace(value, path) if isinstance(value, str) else value
        if id(node) in self._open:
            self._document.problem(path, "the anchor contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[Any, Any]:
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                for source in sources:
                    value = self.build(source, path)
                    if isinstance(value, dict):
                        merged = {**value, **merged}
                    else:
                        self._document.problem(path, "'<<' merges mappings only")
                continue
            key = self._loader.construct_object(key_node)
            if not isinstance(key, (str, int, float, bool)) and key is not None:
                self._document.problem(path, f"line {key_node.start_mark.line + 1}: a key must be text")
                continue
            at = (*path, key if isinstance(key, str) else str(key))
            if key in own:
                self._document.problem(at, f"the key is given twice, again on line {key_node.start_mark.line + 1}")
                continue
            self._document.lines[at] = key_node.start_mark.line + 1
            own[key] = self.build(value_node, at)
        return {**merged, **own}

    def _replace(self, value: str, path: KeyPath) -> str:
        replaced = _VARIABLE.sub(lambda found: self._variable(found, path), value) if "${" in value else value
        # A pattern's values are data to compare with, and may well begin with "file:".
        if value.startswith("file:") and not value.startswith("file://") and not (path[:1] == ("triggers",) and "match" in path):
            self._document.substituted.add(path)
            return self._read(replaced.removeprefix("file:").strip(), path)
        return replaced

    def _variable(self, found: re.Match[str], path: KeyPath) -> str:
        if found.group() == "$$":  # "$${" is how to write "${"
            return "$"
        parts = _NAME.fullmatch(found.group(1) or "")
        if parts is None:
            self._document.problem(path, "expected ${NAME} or ${NAME:-default}; write $${ for a literal ${")
            return ""
        name, default = parts.groups()
        self._document.substituted.add(path)
        value = self._document.environ.get(name)
        if value is None and default is None:
            self._document.problem(path, f"the environment variable {name} is not set, and ${{{name}}} gives no default")
            return ""
        return value or default or ""  # like a shell's `:-`, an empty variable counts as unset

    def _read(self, name: str, path: KeyPath) -> str:
        file = self._document.path.parent / Path(name).expanduser()
        try:
            return file.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            self._document.problem(path, f"the file {file} cannot be read: {reason}")
            return ""
