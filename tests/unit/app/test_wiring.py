"""What the runner and the dispatcher get of a configuration."""

import textwrap
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.app.config import Config, load_config
from headrace.app.wiring import Targets, stream_specs, trigger_specs
from headrace.store import TriggerDefinition
from headrace.triggers import DateTimeTrigger, PatternTrigger

pytestmark = pytest.mark.usefixtures("brook")

CONFIG = """
defaults: {max_attempts: 2}
streams:
  orders: {connector: brook, address: a, topics: [orders], undecodable: reject, ack_timeout: 7, max_attempts: 3}
triggers:
  eu: {stream: orders, match: {region: [eu]}, target: {log: {}}}
  audit: {stream: orders, class: brooktriggers.Audit, kwargs: {level: high}, target: {log: {level: debug}}}
  later: {class: headrace.triggers.TimeDeltaTrigger, kwargs: {delta: 3600}, target: {log: {}}}
"""


def load(tmp_path: Path, text: str = CONFIG) -> Config:
    path = tmp_path / "headrace.yaml"
    path.write_text(textwrap.dedent(text))
    return load_config(path)


def test_a_stream_is_equal_to_itself_read_again(tmp_path: Path) -> None:
    """So a reload restarts it only if its connector's keys or its settings changed."""
    (first,) = stream_specs(load(tmp_path))
    (same,) = stream_specs(load(tmp_path))
    (other,) = stream_specs(load(tmp_path, CONFIG.replace("ack_timeout: 7", "ack_timeout: 8")))
    assert first == same
    assert first != other
    assert (first.settings.ack_timeout, first.settings.cohort_grace_period, first.settings.max_parallel_advances) == (7, 30, 1)


def test_triggers_are_built_with_what_the_configuration_says(tmp_path: Path) -> None:
    """A pattern knows what its stream does with what is not JSON; attempts are the stream's, or the default's."""
    specs = {spec.trigger_id: spec for spec in trigger_specs(load(tmp_path), {})}
    pattern = specs["eu"].build()
    assert isinstance(pattern, PatternTrigger)
    assert (pattern.undecodable, specs["eu"].max_attempts, specs["eu"].stream) == ("reject", 3, "orders")
    assert type(specs["audit"].build()).__name__ == "Audit"
    assert dict(specs["audit"].definition.kwargs) == {"level": "high"}
    assert (specs["later"].stream, specs["later"].max_attempts) == (None, 2)


def registered(config: Config) -> dict[str, TriggerDefinition]:
    return {spec.trigger_id: spec.definition for spec in trigger_specs(config, {})}


def test_a_trigger_that_runs_by_itself_goes_on_as_it_was_registered(tmp_path: Path) -> None:
    """One that waits an hour from when it was made waits for the same moment after a restart."""
    config = load(tmp_path)
    before = registered(config)
    later = trigger_specs(config, before)[2]
    assert later.definition == before["later"]
    built = later.build()
    assert isinstance(built, DateTimeTrigger)
    again = later.build()
    assert isinstance(again, DateTimeTrigger)
    assert built.moment == again.moment
    remaining = (built.moment - datetime.now(UTC)).total_seconds()
    assert 3000 < remaining <= 3600


def test_a_trigger_whose_configuration_changed_begins_anew(tmp_path: Path) -> None:
    """What was registered belongs to the old configuration."""
    before = registered(load(tmp_path))
    later = trigger_specs(load(tmp_path, CONFIG.replace("3600", "7200")), before)[2]
    assert later.definition != before["later"]


def test_what_another_version_registered_is_built_anew(tmp_path: Path) -> None:
    """Arguments that the class does not take any more are not an end of it."""
    config = load(tmp_path)
    old = registered(config)["later"]
    changed = TriggerDefinition("later", old.class_path, {**old.kwargs, "serialized": {"instant": 5}})
    assert isinstance(trigger_specs(config, {"later": changed})[2].build(), DateTimeTrigger)


def test_an_unchanged_target_is_the_same_object(tmp_path: Path) -> None:
    """So the dispatcher keeps its connections; a changed one is another."""
    targets = Targets()
    first = targets.of(load(tmp_path))
    second = targets.of(load(tmp_path, CONFIG.replace("level: debug", "level: info")))
    assert first["eu"] is second["eu"]
    assert first["audit"] is not second["audit"]
