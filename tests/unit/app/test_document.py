"""The file as data that knows its lines."""

from pathlib import Path
from typing import Any

import pytest

from headrace.app.config.document import Document, read_document


def read(tmp_path: Path, text: str, name: str = "headrace.yaml", **environ: str) -> Document:
    path = tmp_path / name
    path.write_text(text)
    return read_document(path, environ=environ)


def data(tmp_path: Path, text: str, **environ: str) -> Any:
    document = read(tmp_path, text, **environ)
    assert document.problems == []
    return document.data


def test_environment_variables_are_replaced(tmp_path: Path) -> None:
    """`${VAR}` is the variable, `${VAR:-default}` the default where it is unset or empty, anywhere in a value."""
    text = "a: ${HOST}:${PORT:-9092}\nb: ${EMPTY:-x}\nc: ${EMPTY:-}\nd: $${HOST}\ne: '$HOST'\n"
    assert data(tmp_path, text, HOST="h", EMPTY="") == {"a": "h:9092", "b": "x", "c": "", "d": "${HOST}", "e": "$HOST"}


def test_a_replaced_value_stays_text(tmp_path: Path) -> None:
    """A password of digits is not turned into a number (0123 would become 83)."""
    assert data(tmp_path, "password: ${P}", P="0123") == {"password": "0123"}


def test_a_variable_that_is_not_set_is_a_mistake_with_its_line(tmp_path: Path) -> None:
    """The variable, the key path and the line are named."""
    problems = read(tmp_path, "a:\n  b: [x, '${NOPE}']\n").problems
    assert problems == [
        f"{tmp_path}/headrace.yaml:2: a.b[1]: the environment variable NOPE is not set, and ${{NOPE}} gives no default"
    ]


@pytest.mark.parametrize("value", ["${}", "${A B}", "${A", "${1A}", "${A:=x}"])
def test_a_malformed_variable_is_a_mistake(tmp_path: Path, value: str) -> None:
    """Anything else after `${` is refused, and how to write it literally is said."""
    (problem,) = read(tmp_path, f"a: '{value}'\n", A="x").problems
    assert "expected ${NAME} or ${NAME:-default}; write $${" in problem


def test_files_are_read_relative_to_the_config(tmp_path: Path) -> None:
    """A `file:` value is the file's text without its last line break; a `file://` URL is left alone."""
    (tmp_path / "token").write_text("s3cret\n")
    text = "a: file:token\nb: 'file:${D}/token'\nc: file:///x\n"
    document = read(tmp_path, text, D=str(tmp_path))
    assert document.data == {"a": "s3cret", "b": "s3cret", "c": "file:///x"}
    assert document.substituted == {("a",), ("b",)}
    assert "s3cret" not in repr(document)


def test_a_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    """The file is named as it was looked for."""
    (problem,) = read(tmp_path, "a: file:nope\n").problems
    assert problem.endswith(f"a: the file {tmp_path}/nope cannot be read: No such file or directory")


def test_a_pattern_may_hold_file_values(tmp_path: Path) -> None:
    """Under a trigger's `match`, `file:` begins a value to compare with."""
    text = "triggers: {t: {match: {url: [{prefix: 'file:'}]}}}"
    assert data(tmp_path, text) == {"triggers": {"t": {"match": {"url": [{"prefix": "file:"}]}}}}


def test_a_key_given_twice_is_a_mistake(tmp_path: Path) -> None:
    """YAML parsers keep the last one silently; here both lines are named."""
    document = read(tmp_path, "streams:\n  orders: {a: 1}\n  orders: {a: 2}\n")
    assert document.problems == [f"{tmp_path}/headrace.yaml:2: streams.orders: the key is given twice, again on line 3"]


def test_anchors_and_merges_work_and_own_keys_win(tmp_path: Path) -> None:
    """`<<` fills in what a mapping does not say itself; that is no key given twice."""
    text = "base: &b {a: 1, b: 2}\nx:\n  <<: *b\n  b: 3\ny:\n  <<: [*b, {c: 4}]\n"
    assert data(tmp_path, text) == {"base": {"a": 1, "b": 2}, "x": {"a": 1, "b": 3}, "y": {"a": 1, "b": 2, "c": 4}}


def test_an_anchor_within_itself_is_a_mistake(tmp_path: Path) -> None:
    """It ends, and says so."""
    (problem,) = read(tmp_path, "a: &x [*x]\n").problems
    assert "the anchor contains itself" in problem


def test_json_is_read_too_with_tabs(tmp_path: Path) -> None:
    """A JSON file may be indented with tabs, which YAML itself forbids."""
    document = read(tmp_path, '{\n\t"a": {\n\t\t"b": [1, true, null, "x"]\n\t}\n}', name="headrace.json")
    assert (document.data, document.problems) == ({"a": {"b": [1, True, None, "x"]}}, [])


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\t- x", "a: !!python/object:os.system x", "a: 1\n---\nb: 2\n"])
def test_what_is_not_yaml_is_one_mistake(tmp_path: Path, text: str) -> None:
    """A syntax error, an object tag and a second document are each a line, never a traceback."""
    (problem,) = read(tmp_path, text).problems
    assert problem.startswith(f"{tmp_path}/headrace.yaml:")


def test_an_unquoted_variable_within_braces_is_explained(tmp_path: Path) -> None:
    """YAML reads `{a: ${X}}` as a mapping in a mapping; the line says to quote it."""
    (problem,) = read(tmp_path, "a: {b: ${X}}\n").problems
    assert problem.endswith("; quote a ${VAR} within [] and {}")


def test_a_file_that_cannot_be_read_is_one_mistake(tmp_path: Path) -> None:
    """So is a file that is not there, or not text."""
    (problem,) = read_document(tmp_path / "nope.yaml").problems
    assert problem == f"{tmp_path}/nope.yaml: cannot be read: No such file or directory"
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (problem,) = read_document(tmp_path / "bytes.yaml").problems
    assert problem.endswith("it is not UTF-8 text")


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    """Nothing, and nothing wrong."""
    assert data(tmp_path, "# nothing\n") is None
