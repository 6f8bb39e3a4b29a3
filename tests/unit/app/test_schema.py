"""The JSON schema that `headrace schema` prints."""

import json

import pytest

from headrace.app.config.model import StreamSettings
from headrace.app.config.schema import config_schema


@pytest.mark.usefixtures("brook")
def test_the_schema_holds_each_connectors_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is one of the installed connectors', with its keys and the stream settings; a target one of ours."""
    monkeypatch.setattr("headrace.app.config.schema.installed_connectors", lambda: {"brook": "headrace-brook 1.2"})
    schema = config_schema()
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
def test_every_setting_is_described_and_every_reference_leads_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No dangling `$ref`; each stream setting says what it is for; numbers may come from the environment."""
    monkeypatch.setattr("headrace.app.config.schema.installed_connectors", lambda: {"brook": "headrace-brook 1.2"})
    schema = config_schema()
    text = json.dumps(schema)
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/$defs/')[1:]}:
        assert reference in schema["$defs"]
    settings = schema["$defs"]["StreamSettings"]["properties"]
    for name in StreamSettings.model_fields:
        assert settings[name]["description"]
    assert settings["ack_timeout"]["default"] == 300
    assert {"type": "string", "pattern": r"^file:|\$\{"} in settings["ack_timeout"]["anyOf"]
    assert "shared_stream_ack_timeout" in settings
