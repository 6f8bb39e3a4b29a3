"""The configuration's JSON schema, with those of the targets and of the connectors that are installed: for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from headrace.app.config.model import AIRFLOW_ALIASES, NAME_PATTERN, ConfigSection
from headrace.connector import Connector
from headrace.dispatch.targets import TARGETS

_FROM_OUTSIDE: Final = {"type": "string", "pattern": r"^file:|\$\{"}


def config_schema(connectors: Mapping[str, Connector]) -> dict[str, Any]:
    """Build the schema (JSON Schema 2020-12), for streams of these connectors by name."""
    definitions: dict[str, Any] = {}
    root = _schema(ConfigSection, "", definitions)
    for kind in ("streams", "triggers"):
        root["properties"][kind]["propertyNames"] = {"pattern": NAME_PATTERN}

    stream = definitions["StreamSection"]
    definitions["StreamSection"] = {
        "oneOf": [_stream(name, connector, stream, definitions) for name, connector in connectors.items()]
    }

    definitions["TriggerSection"]["properties"]["target"] = {
        "description": "Where the trigger's events go.",
        "type": "object",
        "properties": {name: _schema(kind.config, f"{name}.", definitions) for name, kind in TARGETS.items()},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    settings = definitions["StreamSettings"]["properties"]
    for alias, name in AIRFLOW_ALIASES.items():
        settings[alias] = settings[name] | {"description": f"Airflow's name of `{name}`."}
    whole: dict[str, Any] = _substitutable({**root, "title": "Headrace", "$defs": definitions})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | whole


def _schema(model: type[BaseModel], prefix: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """A model's schema; what it refers to goes to `definitions`, under names with a prefix of its own."""
    schema = model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}")
    definitions.update({f"{prefix}{name}": definition for name, definition in schema.pop("$defs", {}).items()})
    return schema


def _stream(name: str, connector: Connector, stream: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    own = _schema(connector.Config, f"{name}.", definitions)
    return {
        **own,
        "title": f"a {name} stream",
        "properties": {**own.get("properties", {}), **stream["properties"], "connector": {"const": name}},
        "required": ["connector", *own.get("required", [])],
    }


def _substitutable(schema: Any) -> Any:
    """The same schema, in which a number or boolean may be written as `${VAR}` or `file:` too."""
    if isinstance(schema, list):
        return [_substitutable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("integer", "number", "boolean"):
        described = {key: schema[key] for key in ("title", "description", "default") if key in schema}
        return {**described, "anyOf": [{key: schema[key] for key in schema if key not in described}, _FROM_OUTSIDE]}
    return {key: _substitutable(value) for key, value in schema.items()}


def option_rows(model: type[BaseModel]) -> list[dict[str, Any]]:
    """A config schema's keys as a table: `key` (nested ones dotted), `type`, `default` (JSON, or `required`), `meaning`."""
    definitions: dict[str, Any] = {}
    return list(_option_rows(_schema(model, "", definitions), definitions, ""))


def _option_rows(schema: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[dict[str, Any]]:
    for key, value in schema.get("properties", {}).items():
        nested = [_resolved(branch, definitions) for branch in (value, *value.get("anyOf", ()))]
        below = next((branch for branch in nested if "properties" in branch), None)
        default = "required" if key in schema.get("required", ()) else json.dumps(value.get("default"))
        meaning = value.get("description", (below or {}).get("description", "")).replace("\n", " ")
        yield {"key": prefix + key, "type": _type(value, definitions), "default": default, "meaning": meaning}
        if below is not None:
            yield from _option_rows(below, definitions, f"{prefix}{key}.")


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "")
    return definitions[reference.removeprefix("#/$defs/")] if reference else schema


def _type(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    schema = _resolved(schema, definitions)
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(branch, definitions) for branch in schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), definitions)}"
    kind: str = schema.get("type", "anything")
    return {"string": "text", "object": "mapping"}.get(kind, kind)
