"""The JSON schema that `headrace schema` prints."""

import json

import pytest

from headrace.app.config.model import StreamSettings
from headrace.app.config.schema import config_schema, option_rows
from headrace.connector import load_connector


@pytest.mark.usefixtures("brook")
def test_the_schema_holds_each_connectors_own_keys() -> None:
    """A stream is one of the installed connectors', with its keys and the stream settings; a target one of ours."""
    schema = config_schema({"brook": load_connector("brook")})
    (stream,) = schema["$defs"]["StreamSection"]["oneOf"]
    assert stream["properties"]["connector"] == {"const": "brook"}
    assert {"address", "topics", "tls", "ack_timeout", "undecodable"} <= stream["properties"].keys()
    assert stream["required"] == ["connector", "address", "topics"]
    assert stream["additionalProperties"] is False
    assert stream["properties"]["tls"]["anyOf"][0] == {"$ref": "#/$defs/brook.Tls"}
    assert schema["$defs"]["brook.Tls"]["required"] == ["ca_file"]
    assert set(schema["$defs"]["TriggerSection"]["properties"]["target"]["properties"]) == {"webhook", "callable", "log"}
    assert "class" in schema["$defs"]["TriggerSection"]["properties"]


@pytest.mark.usefixtures("brook")
def test_every_setting_is_described_and_every_reference_leads_somewhere() -> None:
    """No dangling `$ref`; each stream setting says what it is for; numbers may come from the environment."""
    schema = config_schema({"brook": load_connector("brook")})
    text = json.dumps(schema)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}:
        assert reference in schema["$defs"]
    settings = schema["$defs"]["StreamSettings"]["properties"]
    for name in StreamSettings.model_fields:
        assert settings[name]["description"]
    assert settings["ack_timeout"]["default"] == 300
    assert {"type": "string", "pattern": r"^file:|\$\{"} in settings["ack_timeout"]["anyOf"]
    assert "shared_stream_ack_timeout" in settings


@pytest.mark.usefixtures("brook")
def test_a_connectors_options_are_a_table() -> None:
    """Each key with its type and default, nested keys too."""
    rows = {row["key"]: (row["type"], row["default"]) for row in option_rows(load_connector("brook").Config)}
    assert rows == {
        "address": ("text", "required"),
        "topics": ("list of text or text", "required"),
        "password": ("text or null", "null"),
        "tls": ("mapping or null", "null"),
        "tls.ca_file": ("text", "required"),
    }
