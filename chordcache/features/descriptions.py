"""The extractors that are installed: parameters, tiers, and what is missing to use them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from chordcache.config.config import Config, config_from_json, config_sections
from chordcache.errors import ConfigError
from chordcache.features.built_in import BUILT_IN
from chordcache.features.registry import entry_points, extractor_class
from chordcache.storage.artefacts.tiers import TIERS


@dataclass(frozen=True)
class ExtractorFacts:
    """One extractor that a config can name."""

    name: str
    extractor: str
    """"module:Class\""""
    description: str
    parameters: Mapping[str, Any]
    """Parameter to its default, or to "(required)\""""
    tiers: tuple[str, ...]
    """Tiers that hold the feature, if the config does not say otherwise"""
    package: str
    missing: str | None
    """Reason why it cannot be used, with the command that installs a missing package. None if it can be used"""


def describe_extractors() -> list[ExtractorFacts]:
    """Return the built-in extractors, and those that installed packages name as entry points.

    The modules of plug-ins are imported to read their parameters. One that fails is listed with its reason.
    """
    return [*_built_in(), *_plug_ins()]


def _built_in() -> Iterator[ExtractorFacts]:
    for name, section in config_sections().items():
        config = config_from_json({"features": {name: {}}} if name != "frames" else {})
        reference = BUILT_IN[name].extractor
        cls = extractor_class(name, reference)
        arguments = cls.arguments(section(), config.picture)
        yield ExtractorFacts(
            name,
            reference,
            _summary(cls),
            {field.name: _default_of(field) for field in dataclasses.fields(section)},
            _tiers_of(name, config),
            "chordcache",
            cls.missing_requirement(arguments),
        )


def _plug_ins() -> Iterator[ExtractorFacts]:
    for entry in entry_points():
        package = entry.dist.name if entry.dist is not None else "?"
        missing, description, parameters = None, "", {}
        try:
            cls = extractor_class(entry.name, entry.value)
            description, parameters = _summary(cls), _parameters_of(cls)
            missing = cls.missing_requirement({name: value for name, value in parameters.items() if value != _REQUIRED})
        except ConfigError as error:
            missing = str(error)
        except Exception as error:  # noqa: BLE001 # item boundary: a plug-in may raise anything
            missing = f"{type(error).__name__}: {' '.join(str(error).split())}"
        config = config_from_json({"features": {"plugin": {"extractor": "a:B"}}})
        yield ExtractorFacts(
            entry.name, entry.value, description, parameters, _tiers_of("plugin", config), package, missing
        )


_REQUIRED = "(required)"


def _tiers_of(name: str, config: Config) -> tuple[str, ...]:
    return tuple(tier for tier in TIERS if name in config.in_tier(tier))


def _summary(cls: type) -> str:
    """Return the first line of a docstring, without the paragraph below."""
    return (inspect.getdoc(cls) or "").partition("\n")[0].strip()


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else _REQUIRED


def _parameters_of(cls: type) -> dict[str, Any]:
    """Return the parameters of a plug-in's class but the feature's name, with their defaults."""
    _, *parameters = inspect.signature(cls).parameters.values()
    return {
        parameter.name: _REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default
        for parameter in parameters
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }
