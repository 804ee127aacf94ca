"""Objects that a config describes by a name and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chordcache.arguments import did_you_mean
from chordcache.errors import ConfigError


def make_named(section: str, kinds: Mapping[str, Callable[..., Any]], config: Mapping[str, Any], **given: Any) -> Any:
    """Make the object that a config names.

    Parameters
    ----------
    section : str
        Place of the config, for messages.
    kinds : mapping of str to callable
        Classes or functions by their names.
    config : mapping of str to Any
        ``name``, a key of ``kinds``, and arguments. Lists become tuples.
    **given
        Further arguments, which the config must not have.

    Returns
    -------
    Any
        The result of the class or function.

    Raises
    ------
    ConfigError
        If the name or an argument does not exist, or an argument is missing.
    UsageError
        If the class or function refuses a value.
    """
    arguments = {key: frozen(value) for key, value in config.items() if key != "name"}
    name: Any = config.get("name")
    if name not in kinds:
        names = f"{', '.join(kinds)}{did_you_mean(name, kinds)}"
        raise ConfigError(f"{section}: got the name {name!r}, expected one of {names}")
    kind = kinds[name]
    parameters = {n: p for n, p in inspect.signature(kind).parameters.items() if n not in given}
    check_arguments(f"{section} '{name}'", arguments, list(parameters))
    for argument, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and argument not in arguments:
            raise ConfigError(f"{section} '{name}': got no '{argument}', expected a value. Add it to the config.")
    return kind(**arguments, **given)


def check_arguments(section: str, arguments: Mapping[str, Any], valid: Sequence[str]) -> None:
    """Raise ``ConfigError`` for the first argument that is not among ``valid``."""
    for argument in arguments:
        if argument not in valid:
            expected = f"one of {', '.join(valid)}" if valid else "a name only"
            raise ConfigError(f"{section}: got '{argument}', expected {expected}")


def frozen(value: Any) -> Any:
    """Return lists of a config as tuples, also inside of others."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen(element) for element in value)
    return value
