"""Pydantic's errors as lines that a person can act on: the file, the line, the key path, what is allowed.

Found values are never repeated: any of them may be a secret in the wrong place. Names are: an unknown key is shown with the
nearest one that is known there.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.app.config.document import Document, KeyPath

M = TypeVar("M", bound=BaseModel)

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "null",
}
_KINDS = ((bool, "true or false"), (str, "text"), ((int, float), "a number"), (list, "a list"), (dict, "a mapping"))


def kind(value: Any) -> str:
    """Say what a value is, without saying the value."""
    if value is None:
        return "nothing"
    return next((name for types, name in _KINDS if isinstance(value, types)), type(value).__name__)


def nearest(name: str, known: Iterable[str]) -> str:
    """Give `; did you mean 'x'?`, or an empty string where nothing is near."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1) or [word for word in known if name and word.startswith(name)]
    return f"; did you mean {near[0]!r}?" if near else ""


def unknown_key(name: object, known: Collection[str]) -> str:
    """Word the mistake of a key that is not known here."""
    hint = nearest(str(name), known)
    listed = f" (known here: {', '.join(sorted(known))})" if known and not hint else ""
    return f"unknown key{hint}{listed}"


def validate(document: Document, path: KeyPath, model: type[M], data: Any, *, also_known: Collection[str] = ()) -> M | None:
    """Validate `data`, found at `path`, and note each mistake. `also_known` are keys that would be right there too.

    Nothing at all (`key:` with no value) counts as an empty mapping.
    """
    try:
        return model.model_validate({} if data is None else data)
    except ValidationError as error:
        for where, text in _describe(model, data, error, also_known).items():
            document.problem((*path, *where), text)
        return None


def mistakes(model: type[BaseModel], data: Any) -> dict[KeyPath, str]:
    """What is wrong with `data`, by key path; empty where nothing is."""
    try:
        model.model_validate(data)
    except ValidationError as error:
        return _describe(model, data, error, ())
    return {}


def _describe(model: type[BaseModel], data: Any, error: ValidationError, also_known: Collection[str]) -> dict[KeyPath, str]:
    seen: dict[KeyPath, list[str]] = {}
    for detail in error.errors(include_url=False):
        texts = seen.setdefault(_path_in(data, detail), [])
        if (text := _text(model, detail, also_known)) not in texts:
            texts.append(text)
    return {where: _joined(texts) for where, texts in seen.items()}


def known_keys(model: type[BaseModel]) -> set[str]:
    """The keys a model takes, as a config writes them."""
    return {info.alias or name for name, info in model.model_fields.items()}


def _joined(texts: list[str]) -> str:
    """One line from the branches of a union: `expected a list or text, found a number`."""
    parts = [text.removeprefix("expected ").rsplit(", found ", 1) for text in texts]
    if len(texts) > 1 and all(text.startswith("expected ") for text in texts) and all(len(part) == 2 for part in parts):
        return f"expected {' or '.join(part[0] for part in parts)}, found {parts[0][1]}"
    return "; or ".join(texts)


def _path_in(data: Any, detail: ErrorDetails) -> KeyPath:
    """Pydantic's location without the names of union branches and validators: what the file has, and a missing last key."""
    path: list[str | int] = []
    for index, part in enumerate(detail["loc"]):
        if isinstance(data, Mapping) and part in data:  # noqa: SIM114 - mypy narrows the two one by one
            data = data[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif not (index == len(detail["loc"]) - 1 and detail["type"] == "missing"):
            continue
        path.append(part)
    return tuple(path)


def _text(model: type[BaseModel], detail: ErrorDetails, also_known: Collection[str]) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return "this key is required"
        case "extra_forbidden":
            *parents, name = detail["loc"]
            owner = _model_at(model, parents)
            known = known_keys(owner) if owner else set()
            return unknown_key(name, known | set(also_known) if not parents else known)
        case "literal_error" | "enum":
            allowed = str(context["expected"])
            hint = nearest(str(detail["input"]), allowed.replace("'", "").replace(" or ", ", ").split(", "))
            return f"expected {allowed}{hint}"
        case "value_error" | "assertion_error":
            return str(context["error"])
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal" as bound:
            limit = next(iter(context.values()))
            words = {"greater_than": "more than", "greater_than_equal": "at least"}
            words |= {"less_than": "less than", "less_than_equal": "at most"}
            return f"must be {words[bound]} {limit:g}" if isinstance(limit, (int, float)) else f"must be {words[bound]} {limit}"
        case other if other in _EXPECTED:
            return f"expected {_EXPECTED[other]}, found {kind(detail['input'])}"
    return detail["msg"][:1].lower() + detail["msg"][1:]


def _model_at(model: type[BaseModel], parts: Iterable[str | int]) -> type[BaseModel] | None:
    """The model that owns what lies below these location parts, as far as annotations tell."""
    found: type[BaseModel] | None = model
    for part in parts:
        if found is None:
            return None
        info = next((info for name, info in found.model_fields.items() if part in (info.alias or name, name)), None)
        if info is not None:
            found = next(iter(_models_of(info.annotation)), None)
    return found


def _models_of(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_of(argument)
