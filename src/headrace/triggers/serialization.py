"""Triggers as (import path, keyword arguments), and back: how they are registered, stored and built in another process.

The path is that of a trigger's own class, whatever `serialize()` says: a subclass that overrides nothing but a filter inherits
its parent's `serialize()`, and is still itself. So the arguments that `serialize()` gives must be its own constructor's. That
is tried when a trigger is registered (`check_round_trip`), and not found out at the first restart.

Loading a class runs code, so only what the configuration names is loaded: a class by its path, or all of a module.
Read next: `encoding.py`, how the arguments are stored.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from headrace.errors import ConfigError
from headrace.triggers.base import BaseTrigger
from headrace.triggers.encoding import decode_kwargs, encode_kwargs

OWN_MODULES: Final = ("headrace.triggers",)
"""Always allowed: the triggers that Headrace brings."""


class SerializedTrigger(NamedTuple):
    """A trigger as it is stored."""

    path: str
    """`package.module.Class`"""
    kwargs: dict[str, Any]
    """As `serialize()` gives them; `encode_kwargs` makes JSON of them."""


def trigger_path(kind: type[BaseTrigger]) -> str:
    """The import path of a trigger class. Raises `ConfigError` for one that no other process could import."""
    path = f"{kind.__module__}.{kind.__qualname__}"
    if "<locals>" in kind.__qualname__:
        raise ConfigError([f"{path}: a class defined inside a function cannot be imported; define it at the top of a module"])
    if "." in kind.__qualname__:
        raise ConfigError([f"{path}: a class defined inside a class cannot be loaded; define it at the top of a module"])
    if kind.__module__ == "__main__":
        raise ConfigError([f"{path}: the main script cannot be imported by this name; define the class in a module"])
    try:
        found = getattr(importlib.import_module(kind.__module__), kind.__qualname__, None)
    except ImportError as error:
        raise ConfigError([f"{path}: its module cannot be imported: {error}"]) from error
    if found is not kind:
        raise ConfigError([f"{path}: importing this name gives something else; is the class defined twice, or decorated?"])
    return path


def serialize_trigger(trigger: BaseTrigger) -> SerializedTrigger:
    """A trigger's own path and arguments. Raises `ConfigError` for a class that cannot be imported, or a wrong `serialize()`."""
    path = trigger_path(type(trigger))
    serialized = trigger.serialize()
    match serialized:
        case (str(), dict(kwargs)) if all(isinstance(name, str) for name in kwargs):
            return SerializedTrigger(path, kwargs)
    raise ConfigError([f"{path}: serialize() has to return (import path, dict of keyword arguments), found {_shape(serialized)}"])


def check_round_trip(trigger: BaseTrigger) -> SerializedTrigger:
    """Prove that a trigger can be stored and built again as itself, and return how it is stored.

    Raises `ConfigError` that says which argument cannot be stored, is not taken, or comes back different.
    """
    path, kwargs = serialize_trigger(trigger)
    encoded = _prefixed(path, encode_kwargs, kwargs)
    rebuilt = _build(type(trigger), path, decode_kwargs(encoded), " although its serialize() returns them")
    again = _prefixed(path, encode_kwargs, serialize_trigger(rebuilt).kwargs)
    if different := sorted(name for name in encoded.keys() | again.keys() if encoded.get(name) != again.get(name)):
        raise ConfigError([f"{path}: built again from its serialize(), it has another {name!r}" for name in different])
    return SerializedTrigger(path, kwargs)


def load_trigger_class(path: str, *, allowed: Collection[str] = ()) -> type[BaseTrigger]:
    """Import a trigger class by `package.module:Class` or `package.module.Class`.

    `allowed` names classes in the same way (by their `trigger_path`), and modules, each with what is below it. Nothing is
    imported that it does not name. Raises `ConfigError` that says what is wrong.
    """
    module_name, _, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in (*module_name.split("."), name)):
        hint = "; a class inside a class or function cannot be loaded" if "." in name or "<" in path else ""
        raise ConfigError([f"{path!r} is no import path: expected package.module:Class{hint}"])
    dotted = f"{module_name}.{name}"
    if not any(f"{dotted}.".startswith(f"{entry.replace(':', '.')}.") for entry in (*OWN_MODULES, *allowed)):
        raise ConfigError([f"{path}: not named by the configuration; add {module_name!r} to allowed_modules to load it"])
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported, and its author has to see it
        raise ConfigError([f"{path}: importing {module_name!r} failed: {type(error).__name__}: {error}"]) from error
    found = getattr(module, name, None)
    if found is None:
        known = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, BaseTrigger)]
        near = difflib.get_close_matches(name, known, n=1)
        raise ConfigError([f"{path}: {module_name!r} has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")])
    if not isinstance(found, type) or not issubclass(found, BaseTrigger):
        raise ConfigError([f"{path}: {name!r} is no subclass of headrace.BaseTrigger"])
    if inspect.isabstract(found):
        raise ConfigError([f"{path}: {name!r} does not implement {', '.join(sorted(found.__abstractmethods__))}"])
    return found


def load_trigger(path: str, kwargs: Mapping[str, Any], *, allowed: Collection[str] = ()) -> BaseTrigger:
    """Build a trigger from its path and arguments (decoded). Raises `ConfigError`, also for what its constructor refuses."""
    return _build(load_trigger_class(path, allowed=allowed), path, kwargs)


def _build(kind: type[BaseTrigger], path: str, kwargs: Mapping[str, Any], hint: str = "") -> BaseTrigger:
    try:
        inspect.signature(kind).bind(**kwargs)
    except TypeError as error:
        raise ConfigError([f"{path}: {kind.__name__} does not take these arguments{hint}: {error}"]) from error
    try:
        return kind(**kwargs)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from error
    except Exception as error:  # whatever a constructor raises is its word on the arguments
        raise ConfigError([f"{path}: {kind.__name__} could not be built: {type(error).__name__}: {error}"]) from error


def _prefixed(path: str, encode: Callable[[Mapping[str, Any]], dict[str, Any]], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return encode(kwargs)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from error


def _shape(serialized: Any) -> str:
    if isinstance(serialized, (tuple, list)):
        return f"a {type(serialized).__name__} of ({', '.join(type(item).__name__ for item in serialized)})"
    return f"a {type(serialized).__name__}"
