"""Triggers as (import path, keyword arguments), and back."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace import BaseEventTrigger, BaseTrigger, ConfigError, TriggerEvent
from headrace.triggers import (
    DateTimeTrigger,
    PatternTrigger,
    check_round_trip,
    load_trigger,
    load_trigger_class,
    serialize_trigger,
    trigger_path,
)

PARENT = "company.triggers.Parent"


class Parent(BaseEventTrigger):
    """As it is written for Airflow: `serialize()` names its own class in a string."""

    def __init__(self, topic: str, options: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.topic = topic
        self.options = options

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (PARENT, {"topic": self.topic, "options": self.options})


class OnlyAFilter(Parent):
    """Overrides a filter and inherits the rest, its parent's path in `serialize()` too."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for raw in shared_stream:
            yield TriggerEvent(raw)


class OtherArguments(Parent):
    """Inherits a `serialize()` whose arguments are not its own."""

    def __init__(self, level: str) -> None:
        super().__init__(topic=level)


class Changing(Parent):
    """Is another one each time it is built."""

    def __init__(self, topic: str, options: tuple[int, ...] = ()) -> None:
        super().__init__(f"{topic}!", options)


class Listing(Parent):
    """Keeps a list of what it is given."""

    def __init__(self, topic: str, options: Any = ()) -> None:
        super().__init__(topic, options)
        self.options: Any = list(options)


class Failing(Parent):
    def __init__(self, topic: str, options: tuple[int, ...] = ()) -> None:
        super().__init__(topic, options)
        if topic == "again":
            raise KeyError("no such topic")
        self.topic = "again"


class Returning(Parent):
    result: Any = None

    def serialize(self) -> Any:
        return self.result


class Outer:
    class Inner(Parent):
        pass


class Abstract(BaseTrigger):
    def serialize(self) -> tuple[str, dict[str, Any]]:
        return ("", {})


def here(name: str) -> str:
    return f"{__name__}.{name}"


def problems(raised: pytest.ExceptionInfo[ConfigError]) -> str:
    return "\n".join(raised.value.problems)


def test_a_subclass_that_overrides_only_a_filter_stays_itself() -> None:
    """The stored path is the trigger's own class, whatever path its `serialize()` returns."""
    stored = check_round_trip(OnlyAFilter("orders", (1, 2)))
    assert stored == (here("OnlyAFilter"), {"topic": "orders", "options": (1, 2)})
    rebuilt = load_trigger(stored.path, stored.kwargs, allowed=[here("OnlyAFilter")])
    assert type(rebuilt) is OnlyAFilter
    assert rebuilt.serialize() == OnlyAFilter("orders", (1, 2)).serialize()


@pytest.mark.parametrize(
    ("trigger", "problem"),
    [
        (OtherArguments("high"), "OtherArguments does not take these arguments although its serialize() returns them: "),
        (Changing("orders"), "Changing: built again from its serialize(), it has another 'topic'"),
        (Failing("first"), "Failing: Failing could not be built: KeyError: 'no such topic'"),
        (Parent(len), "Parent: kwargs.topic: a builtin_function_or_method cannot be stored"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_not_survive_a_restart_is_refused_when_registered(trigger: BaseTrigger, problem: str) -> None:
    """The round trip is tried at once: arguments that are not the constructor's, change on the way, or cannot be stored."""
    with pytest.raises(ConfigError) as raised:
        check_round_trip(trigger)
    assert f"{__name__}." in problems(raised)
    assert problem in problems(raised)


def test_the_round_trip_tells_a_list_from_a_tuple() -> None:
    """What is compared is what is stored: an equal content is not enough if the next process gets another type."""
    trigger = Listing("orders", [1])
    assert check_round_trip(trigger).kwargs["options"] == [1]
    trigger.options = (1,)
    with pytest.raises(ConfigError, match="it has another 'options'"):
        check_round_trip(trigger)


@pytest.mark.parametrize("result", [None, ("path",), ("path", []), (1, {}), ("path", {1: 2}), {"path": {}}], ids=repr)
def test_a_wrong_serialize_is_named(result: Any) -> None:
    """`serialize()` returns a path and a dict of keyword arguments, nothing else."""
    trigger = Returning("orders")
    trigger.result = result
    with pytest.raises(ConfigError, match=r"Returning: serialize\(\) has to return"):
        serialize_trigger(trigger)


def test_classes_that_no_other_process_could_import_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local and nested classes, those of the main script, and those whose name means another object."""

    class Local(Parent):
        pass

    twice = type("Parent", (Parent,), {"__module__": __name__})
    main = type("Main", (Parent,), {"__module__": "__main__"})
    nowhere = type("Nowhere", (Parent,), {"__module__": "no.such.module"})
    for kind, problem in [
        (Local, "a class defined inside a function cannot be imported; define it at the top of a module"),
        (Outer.Inner, "a class defined inside a class cannot be loaded"),
        (main, "the main script cannot be imported by this name"),
        (twice, "importing this name gives something else"),
        (nowhere, "its module cannot be imported"),
    ]:
        with pytest.raises(ConfigError) as raised:
            trigger_path(kind)
        assert problem in problems(raised)


@pytest.fixture
def company(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of somebody's, importable and not yet imported."""
    package = tmp_path / "company"
    package.mkdir()
    (package / "__init__.py").write_text("from company.triggers import Audit\n")
    (package / "triggers.py").write_text(
        "from headrace import BaseTrigger\n"
        "LIMIT = 1\n"
        "class Audit(BaseTrigger):\n"
        "    def __init__(self, *, level='low'):\n"
        "        self.level = level\n"
        "    def serialize(self):\n"
        "        return ('company.triggers.Audit', {'level': self.level})\n"
        "    async def run(self):\n"
        "        yield None\n"
    )
    (package / "broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "company"]:
        del sys.modules[name]


@pytest.mark.parametrize("path", ["company.triggers.Audit", "company.triggers:Audit"])
@pytest.mark.parametrize(
    "allowed", ["company.triggers.Audit", "company.triggers:Audit", "company.triggers", "company"], ids=lambda entry: entry
)
def test_loads_what_is_allowed_by_either_way_of_writing_it(company: Path, path: str, allowed: str) -> None:
    """A class by its dotted or colon path, allowed by itself, by its module, or by a package above."""
    trigger = load_trigger(path, {"level": "high"}, allowed=["elsewhere", allowed])
    assert trigger.serialize() == ("company.triggers.Audit", {"level": "high"})
    assert check_round_trip(trigger).path == "company.triggers.Audit"


@pytest.mark.parametrize(
    "allowed", [(), ("company.trig",), ("company.triggers.Aud",), ("compan",), ("company.triggers.Audit.x",), ("",)], ids=repr
)
def test_nothing_is_imported_that_is_not_allowed(company: Path, allowed: tuple[str, ...]) -> None:
    """A path that the configuration does not name runs no code; a name that only begins alike does not allow it."""
    with pytest.raises(ConfigError, match=r"add 'company\.triggers' to allowed_modules"):
        load_trigger("company.triggers.Audit", {}, allowed=allowed)
    assert "company" not in sys.modules


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("Audit", "'Audit' is no import path: expected package.module:Class"),
        ("", "is no import path"),
        (":Audit", "is no import path"),
        ("company.triggers:", "is no import path"),
        ("company/triggers:Audit", "is no import path"),
        ("company.triggers:Outer.Audit", "a class inside a class or function cannot be loaded"),
        ("company.triggers.make.<locals>.Audit", "a class inside a class or function cannot be loaded"),
        ("company.absent:Audit", "importing 'company.absent' failed: ModuleNotFoundError: No module named 'company.absent'"),
        ("company.broken:Audit", "importing 'company.broken' failed: RuntimeError: no licence"),
        ("company.triggers:Audi", "'company.triggers' has no 'Audi'; did you mean 'Audit'?"),
        ("company.triggers:LIMIT", "'LIMIT' is no subclass of headrace.BaseTrigger"),
        ("company.triggers:BaseTrigger", "'BaseTrigger' does not implement run, serialize"),
    ],
)
def test_what_cannot_be_loaded_is_named(company: Path, path: str, problem: str) -> None:
    """No path, no module, a module that fails, no such class, no trigger, an unfinished one."""
    with pytest.raises(ConfigError) as raised:
        load_trigger(path, {}, allowed=["company"])
    assert problem in problems(raised)


def test_arguments_that_are_not_taken_are_named(company: Path) -> None:
    """A constructor's word on its arguments is a config error, each mistake of a pattern too."""
    with pytest.raises(ConfigError, match="Audit does not take these arguments: got an unexpected keyword argument 'levle'"):
        load_trigger("company:Audit", {"levle": "high"}, allowed=["company"])
    with pytest.raises(ConfigError, match=r"DateTimeTrigger could not be built: ValueError: .* has no time zone"):
        load_trigger("headrace.triggers:DateTimeTrigger", {"moment": "2026-01-01T00:00:00"})
    with pytest.raises(ConfigError) as raised:
        load_trigger("headrace.triggers:PatternTrigger", {"match": {"a": 1, "b": 2}})
    assert [line.split(": ")[:2] for line in raised.value.problems] == [
        ["headrace.triggers:PatternTrigger", "match.a"],
        ["headrace.triggers:PatternTrigger", "match.b"],
    ]


def test_headrace_s_own_triggers_are_always_allowed() -> None:
    """By the public name and by the path they are stored under."""
    for path, kind in [
        ("headrace.triggers:PatternTrigger", PatternTrigger),
        ("headrace.triggers.temporal.DateTimeTrigger", DateTimeTrigger),
    ]:
        assert load_trigger_class(path) is kind
    assert trigger_path(DateTimeTrigger) == "headrace.triggers.temporal.DateTimeTrigger"
    with pytest.raises(ConfigError, match="not named by the configuration"):
        load_trigger_class("headrace.testing.memory:MemoryBroker")


def test_stored_triggers_are_built_from_their_decoded_arguments() -> None:
    """A moment goes through the store as a datetime."""
    trigger = DateTimeTrigger(datetime(2026, 7, 1, tzinfo=UTC))
    path, kwargs = check_round_trip(trigger)
    assert load_trigger(path, kwargs).serialize() == trigger.serialize()
