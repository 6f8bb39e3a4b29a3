"""The configuration's JSON schema, with those of the targets and of the connectors that are installed: for editors."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from headrace.app.config.model import AIRFLOW_ALIASES, NAME_PATTERN, ConfigSection
from headrace.connector import installed_connectors, load_connector
from headrace.dispatch.targets import TARGETS

_FROM_OUTSIDE: Final = {"type": "string", "pattern": r"^file:|\$\{"}


def config_schema() -> dict[str, Any]:
    """Build the schema (JSON Schema 2020-12). A number or boolean may be given as `${VAR}` or `file:` too."""
    definitions: dict[str, Any] = {}
    root = _schema(ConfigSection, "", definitions)
    for kind in ("streams", "triggers"):
        root["properties"][kind]["propertyNames"] = {"pattern": NAME_PATTERN}

    stream = definitions["StreamSection"]
    definitions["StreamSection"] = {"oneOf": [_stream(name, stream, definitions) for name in installed_connectors()]}

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


def _stream(connector: str, stream: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    own = _schema(load_connector(connector).Config, f"{connector}.", definitions)
    return {
        **own,
        "title": f"a {connector} stream",
        "properties": {**own.get("properties", {}), **stream["properties"], "connector": {"const": connector}},
        "required": ["connector", *own.get("required", [])],
    }


def _substitutable(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_substitutable(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("integer", "number", "boolean"):
        described = {key: schema[key] for key in ("title", "description", "default") if key in schema}
        return {**described, "anyOf": [{key: schema[key] for key in schema if key not in described}, _FROM_OUTSIDE]}
    return {key: _substitutable(value) for key, value in schema.items()}
