"""From a file to a configuration that can be served, or to every mistake in it at once.

Each section is validated on its own, so that one mistake hides no other. A stream's keys are split between its settings and
its connector's schema, a trigger's class is imported and its arguments are matched with its constructor, a target is
validated by its own schema. Nothing connects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from headrace.app.config import classes
from headrace.app.config.document import Document, KeyPath, dotted, read_document
from headrace.app.config.model import (
    AIRFLOW_ALIASES,
    NAME_PATTERN,
    ConfigSection,
    GeneralSection,
    HttpSection,
    StoreSection,
    StreamSection,
    StreamSettings,
    TriggerSection,
)
from headrace.app.config.problems import kind, known_keys, mistakes, nearest, unknown_key, validate
from headrace.connector import Connector
from headrace.dispatch.config import DispatchConfig
from headrace.dispatch.targets import TARGETS, TargetConfig, TargetContext
from headrace.errors import ConfigError
from headrace.triggers import BaseTrigger, EventPattern, PatternError

M = TypeVar("M", bound=BaseModel)

_SECRET_WORDS = re.compile(r"password|passwd|secret|token|api_?key|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """A stream that can be opened."""

    name: str
    connector: Connector = field(compare=False)
    connector_name: str
    connector_config: BaseModel
    settings: StreamSettings
    undecodable: str
    acknowledge: bool


@dataclass(frozen=True, slots=True)
class TriggerConfig:
    """A trigger that can be built, and the target of its events. Either `match` or `trigger_class` is None."""

    name: str
    stream: str | None
    match: Mapping[str, Any] | None
    trigger_class: type[BaseTrigger] | None
    kwargs: Mapping[str, Any] = field(repr=False)
    target: str
    target_config: TargetConfig


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration in which everything that needs no connection has been checked."""

    path: Path
    store: StoreSection
    http: HttpSection
    dispatch: DispatchConfig
    defaults: StreamSettings
    general: GeneralSection
    streams: Mapping[str, StreamConfig]
    triggers: Mapping[str, TriggerConfig]
    warnings: tuple[str, ...] = ()


def load_config(path: Path, *, environ: Mapping[str, str] | None = None) -> Config:
    """Read and check a configuration file. `environ` is what `${VAR}` is taken from, by default the process's.

    Raises `ConfigError` with a line for each mistake.
    """
    document = read_document(path, environ=environ)
    config = _Loader(document).load()
    if document.problems:
        raise ConfigError(document.problems)
    return config


class _Loader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._warnings: list[str] = []

    def load(self) -> Config:
        document = self._document
        data = {} if document.data is None else document.data
        if not isinstance(data, dict):
            document.problem((), "expected a mapping with keys such as `streams` and `triggers`")
            data = {}
        known = known_keys(ConfigSection)
        for name in data.keys() - known:
            document.problem((str(name),), unknown_key(name, known))
        general_keys = known_keys(GeneralSection)
        general = self._validated((), GeneralSection, {name: value for name, value in data.items() if name in general_keys})
        store = self._validated(("store",), StoreSection, data.get("store"))
        http = self._validated(("http",), HttpSection, data.get("http"))
        dispatch = self._validated(("dispatch",), DispatchConfig, data.get("dispatch"))
        defaults = self._defaults(data.get("defaults"))
        named = self._named("streams", data)
        streams = {
            name: stream
            for name, section in named.items()
            if (stream := self._stream(name, section, defaults, general)) is not None
        }
        triggers = {
            name: trigger
            for name, section in self._named("triggers", data).items()
            if (trigger := self._trigger(name, section, named)) is not None
        }
        for name, trigger in triggers.items():
            for text in dispatch.problems({name: trigger.target_config}):
                document.problem(("triggers", name, "target"), text.partition(": ")[2])
        if not store.secret_keys:
            self._warn_of_open_secrets()
        return Config(document.path, store, http, dispatch, defaults, general, streams, triggers, tuple(self._warnings))

    def _validated(self, path: KeyPath, model: type[M], data: Any) -> M:
        """The section, or its defaults where it has mistakes (which are noted, so that nothing is served with them)."""
        return validate(self._document, path, model, data) or model()

    def _named(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The streams or triggers by name, without those whose name cannot be one."""
        sections = data.get(kind)
        if sections is None:
            return {}
        if not isinstance(sections, dict):
            self._document.problem((kind,), "expected a mapping of names")
            return {}
        good = {}
        for name, section in sections.items():
            if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name):
                good[name] = section
            else:
                self._document.problem(
                    (kind, str(name)), "a name has 1 to 100 letters, digits, '_', '-' or '.', and begins with none of '-.'"
                )
        return good

    def _defaults(self, data: Any) -> StreamSettings:
        """The stream settings for all streams: ours before Airflow's name before Airflow's variable."""
        settings: dict[str, Any] = {}
        for alias, name in AIRFLOW_ALIASES.items():
            variable = f"AIRFLOW__TRIGGERER__{alias.upper()}"
            if (value := self._document.environ.get(variable)) is None:
                continue
            for text in mistakes(StreamSettings, {name: value}).values():
                self._document.problem((), f"the environment variable {variable}: {text}")
                break
            else:
                settings[name] = value
        if isinstance(data, dict):
            data = dict(data)
            for alias, name in AIRFLOW_ALIASES.items():
                if alias not in data:
                    continue
                if name in data:
                    self._document.problem(("defaults", alias), f"is another name of {name!r}, which is given too")
                settings[name] = value = data.pop(alias)
                for text in mistakes(StreamSettings, {name: value}).values():
                    self._document.problem(("defaults", alias), text)
                    del settings[name]
        own = validate(self._document, ("defaults",), StreamSettings, data, also_known=AIRFLOW_ALIASES)
        return StreamSettings.model_validate(settings | (own.model_dump(exclude_unset=True) if own else {}))

    def _stream(self, name: str, data: Any, defaults: StreamSettings, general: GeneralSection) -> StreamConfig | None:
        path = ("streams", name)
        if not isinstance(data, dict):
            self._document.problem(path, f"expected a mapping with a `connector`, found {kind(data)}")
            return None
        own_keys = known_keys(StreamSection)
        own = validate(self._document, path, StreamSection, {key: value for key, value in data.items() if key in own_keys})
        if not isinstance(connector_name := data.get("connector"), str):
            return None
        try:
            connector = classes.find_connector(connector_name)
        except ValueError as error:
            self._document.problem((*path, "connector"), str(error))
            return None
        rest = {key: value for key, value in data.items() if key not in own_keys}
        connector_config = validate(self._document, path, connector.Config, rest, also_known=own_keys)
        if own is None or connector_config is None:
            return None
        chosen = own.model_dump(exclude_unset=True, include=known_keys(StreamSettings))
        settings = StreamSettings.model_validate(defaults.model_dump(exclude_unset=True) | chosen)
        facts = {**settings.model_dump(), "queue_timeout": settings.queue_timeout or settings.ack_timeout}
        for line in connector.check(connector_config, {**facts, "dedupe_retention": general.dedupe_retention}):
            if line.startswith("warning: "):
                self._warnings.append(f"{dotted(path)}: {line.removeprefix('warning: ')}")
            else:
                self._document.problem(path, line)
        return StreamConfig(name, connector, connector_name, connector_config, settings, own.undecodable, own.acknowledge)

    def _trigger(self, name: str, data: Any, streams: Collection[str]) -> TriggerConfig | None:
        path = ("triggers", name)
        section = validate(self._document, path, TriggerSection, data)
        if not isinstance(data, dict):
            return None
        stream = data.get("stream")
        if isinstance(stream, str) and stream not in streams:
            hint = nearest(stream, streams) or f" (there are: {', '.join(streams) or 'none'})"
            self._document.problem((*path, "stream"), f"there is no stream of this name{hint}")
        target = self._target((*path, "target"), data["target"]) if isinstance(data.get("target"), dict) else None
        if isinstance(match := data.get("match"), dict):
            self._pattern((*path, "match"), match)
        trigger_class = None
        if isinstance(class_path := data.get("class"), str):
            kwargs = data.get("kwargs")
            trigger_class = self._class(
                path, class_path, kwargs if isinstance(kwargs, dict) else {}, on_stream=stream is not None
            )
        if section is None or target is None or (section.class_ is not None and trigger_class is None):
            return None
        return TriggerConfig(name, section.stream, section.match, trigger_class, section.kwargs, *target)

    def _target(self, path: KeyPath, data: Mapping[str, Any]) -> tuple[str, TargetConfig] | None:
        listed = f"exactly one of {', '.join(sorted(TARGETS))}"
        for unknown in data.keys() - TARGETS.keys():
            self._document.problem((*path, str(unknown)), f"unknown target{nearest(str(unknown), TARGETS)} (expected {listed})")
        known = [name for name in data if name in TARGETS]
        if len(known) != 1:
            if known or not data:
                self._document.problem(path, f"expected {listed}, found {', '.join(known) or 'none'}")
            return None
        kind_of = TARGETS[known[0]]
        config = validate(self._document, (*path, known[0]), kind_of.config, data[known[0]])
        if config is None:
            return None
        try:
            kind_of.build(config, TargetContext())
        except ConfigError as error:
            for text in error.problems:
                self._document.problem((*path, known[0]), text)
            return None
        return known[0], config

    def _pattern(self, path: KeyPath, match: Mapping[str, Any]) -> None:
        try:
            pattern = EventPattern(match)
        except PatternError as error:
            for place, text in error.mistakes:
                self._document.problem((*path, *place), text)
        else:
            self._warnings += [f"{dotted((*path, *place))}: {text}" for place, text in pattern.warnings]

    def _class(self, path: KeyPath, class_path: str, kwargs: dict[str, Any], *, on_stream: bool) -> type[BaseTrigger] | None:
        try:
            found = classes.find_trigger_class(class_path, on_stream=on_stream)
        except ConfigError as error:
            for text in error.problems:
                self._document.problem((*path, "class"), text)
            return None
        secrets = [str(value) for value in kwargs.values()] if self._document.is_substituted((*path, "kwargs")) else []
        for name, text in classes.argument_mistakes(found, kwargs):
            for secret in secrets:
                text = text.replace(secret, "***") if secret else text
            self._document.problem((*path, "kwargs", name) if name else (*path, "kwargs"), text)
        return found

    def _warn_of_open_secrets(self) -> None:
        open_ones = {
            path[:3]: None
            for path in self._document.lines
            if path[0:1] == ("triggers",) and path[2:3] == ("kwargs",) and len(path) > 3
            if path in self._document.substituted or _SECRET_WORDS.search(str(path[-1]))
        }
        for path in open_ones:
            self._warnings.append(f"{dotted(path)}: may hold secrets, and is stored unencrypted: set store.secret_keys")
