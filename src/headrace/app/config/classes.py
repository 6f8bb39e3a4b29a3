"""What a configuration names in other people's code: connectors, and trigger classes with their arguments.

The one place where reading a configuration runs such code: importing it, and building a trigger once to see whether its
constructor takes the arguments.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import headrace.errors
from headrace.app.config.problems import nearest
from headrace.connector import Connector, load_connector
from headrace.errors import ConfigError
from headrace.triggers import BaseEventTrigger, BaseTrigger, check_round_trip, load_trigger_class

_OUR_FOLDER = str(Path(headrace.errors.__file__).parent)


def find_connector(name: str) -> Connector:
    """The installed connector of this name. Raises `ValueError` that says what is wrong with it."""
    try:
        return load_connector(name)
    except ConfigError as error:
        raise ValueError("; ".join(error.problems)) from error
    except Exception as error:  # a distribution that is installed half, or wrong
        raise ValueError(f"the connector {name!r} cannot be imported: {_where(error)}{type(error).__name__}: {error}") from error


def find_trigger_class(class_path: str, *, on_stream: bool) -> type[BaseTrigger]:
    """Import `package.module:Class` or `package.module.Class`. Raises `ConfigError` that says what is wrong with it."""
    found = load_trigger_class(class_path, allowed=(class_path,))
    if on_stream and not (issubclass(found, BaseEventTrigger) and _overrides(found, "filter_shared_stream")):
        raise ConfigError([f"{class_path}: {found.__name__!r} has no filter_shared_stream, so it cannot watch a stream"])
    return found


def argument_mistakes(trigger_class: type[BaseTrigger], kwargs: Mapping[str, Any]) -> Iterator[tuple[str | None, str]]:
    """What the constructor has against the arguments, as `(the argument's name, the mistake)`; nothing where it takes them."""
    parameters = inspect.signature(trigger_class).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = [
        name
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    wrong = False
    for name in kwargs:
        if name not in named and not takes_any:
            wrong = True
            hint = nearest(name, named) or f" (it takes: {', '.join(named) or 'none'})"
            yield name, f"{trigger_class.__name__} takes no such argument{hint}"
    for name in named:
        if parameters[name].default is inspect.Parameter.empty and name not in kwargs:
            wrong = True
            yield name, f"{trigger_class.__name__} requires this argument"
    if wrong:
        return
    try:
        check_round_trip(trigger_class(**kwargs))
    except ConfigError as error:
        yield from ((None, problem) for problem in error.problems)
    except Exception as error:  # whatever the constructor raises is its word on the arguments
        yield None, f"{trigger_class.__name__} does not take them: {type(error).__name__}: {error}"


def _overrides(found: type[BaseTrigger], method: str) -> bool:
    return getattr(found, method) is not getattr(BaseEventTrigger, method)


def _where(error: BaseException) -> str:
    """`file:line: ` of the last line of their code that the error went through, if it reached any."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if "importlib" not in frame.filename and not frame.filename.startswith(_OUR_FOLDER)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}: " if theirs else ""
