"""The extractor of each feature, its parameters, and the fingerprint that follows from them."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any

from chordcache import digests, progress
from chordcache.config.checks import check_number
from chordcache.config.config import Config, loaded_names
from chordcache.errors import StoppedError, UsageError, describe, printable
from chordcache.features.base import Extractor
from chordcache.features.built_in import BUILT_IN
from chordcache.features.item_fields import ITEM_FIELDS
from chordcache.features.networks.extractor import BatchSize, NetworkExtractor, check_device, devices_of

ENTRY_POINTS = "chordcache.extractors"
"""Group of entry points in which a package names its extractors: ``name = "package.module:Class"``"""


@dataclass(frozen=True)
class FeatureSpec:
    """A resolved feature of a config."""

    name: str
    extractor: str
    """"module:Class\""""
    arguments: Mapping[str, Any]
    params: Mapping[str, Any]
    """Arguments, and under "picture" the ``PictureConfig``. Settings that do not change the numbers have defaults"""
    fingerprint: str
    is_local: bool
    is_of_sound: bool
    """True if the extractor needs sound and has its own clock"""
    needs_motion_vectors: bool
    units: Mapping[str, str]
    uses: tuple[str, ...] = ()
    """Fields of the item that it is made of"""
    device: str = ""
    """Device of its network, such as "auto", or "" if it is not a ``NetworkExtractor``"""
    batch_size: int = 1

    def make(self) -> Extractor:
        """Return a new extractor, for one video. Call ``set_up`` before."""
        extractor: Extractor = extractor_class(self.name, self.extractor)(self.name, **self.arguments)
        extractor.model, batch_size = _models[self._model_key]
        if isinstance(extractor, NetworkExtractor):
            extractor.batch_size = batch_size
        return extractor

    @property
    def buckets(self) -> Any:
        """Buckets that its rows depend on, as plain data, or None."""
        return self.params["picture"].get("buckets")

    def devices(self) -> tuple[str, ...]:
        """Return the devices of its network on this machine. Raise ``UsageError`` if the machine lacks them."""
        return devices_of(f"features.{self.name}.device", self.device)

    def set_up(self) -> None:
        """Load what all videos share, if this process has not done so. Raise ``UsageError`` if it cannot be loaded."""
        if self._model_key not in _models:
            with progress.setting_up(), _calling(self.name, ": its network cannot be loaded"):
                device = self.devices()[0] if self.device else "cpu"
                model = extractor_class(self.name, self.extractor).setup(device, **self.arguments)
                _models[self._model_key] = model, BatchSize(self.batch_size)

    @property
    def _model_key(self) -> tuple[str, str, str, int]:
        arguments = json.dumps(dict(self.arguments), sort_keys=True, default=str)
        return self.extractor, arguments, self.device, self.batch_size


_models: dict[tuple[str, str, str, int], tuple[Any, BatchSize]] = {}
"""Results of ``Extractor.setup`` in this process, by extractor, arguments, device and batch size"""


@contextmanager
def _calling(name: str, what: str) -> Iterator[None]:
    """Turn any exception of a plug-in into ``UsageError`` about the feature."""
    try:
        yield
    except (UsageError, StoppedError):
        raise
    except (Exception, SystemExit) as error:  # item boundary: a plug-in may raise anything
        raise UsageError(f"features.{name}{what}: {describe(error)}") from error


def resolve(name: str, config: Config) -> FeatureSpec:
    """Return the specification of one of ``config.names()``.

    Raise ``UsageError`` if its extractor cannot be imported, or does not accept its parameters, and as
    ``check_trusted``.
    """
    section: Any = config.section(name)
    picture = config.picture.normalized()
    extractor = BUILT_IN[name].extractor if name in BUILT_IN else section.extractor
    check_trusted(name, config)
    cls = extractor_class(name, extractor)
    arguments = cls.arguments(section, picture) if name in BUILT_IN else dict(section.params)
    device, batch_size = "", 1
    if issubclass(cls, NetworkExtractor):  # they do not change the feature
        device, batch_size = arguments.pop("device", "auto"), arguments.pop("batch_size", 1)
        check_device(f"features.{name}.device", device)
        check_number(f"features.{name}.batch_size", batch_size, int, 1, 4096)
    try:
        inspect.signature(cls).bind(name, **arguments)
    except TypeError as error:
        raise UsageError(f"features.{name}: '{extractor}' does not take its parameters: {error}") from None
    with _calling(name, f": '{extractor}' fails"):
        uses, seen, identity = cls.fields_used(arguments), cls.picture_used(picture).params(), cls.identity(arguments)
    if not set(uses) <= set(ITEM_FIELDS):
        fields = ", ".join(ITEM_FIELDS)
        raise UsageError(f"features.{name}: '{extractor}' uses {', '.join(uses)}, expected some of {fields}")
    used: dict[str, Any] = {"picture": seen}
    if uses:
        used["uses"] = list(uses)
    params = {**arguments, **used}
    fingerprint = digests.fingerprint(extractor, cls.version, {**identity, **used})
    return FeatureSpec(
        name, extractor, arguments, params, fingerprint, cls.is_local, cls.needs_sound and not cls.is_local,
        cls.needs_motion_vectors, cls.units, uses, device, batch_size,
    )  # fmt: skip


def check_trusted(name: str, config: Config) -> None:
    """Raise ``UsageError`` if only a cache names what a feature loads, and it is not an installed plug-in.

    A cache may come from anyone. Python would import the class of a plug-in from the working folder, or from the cache
    itself. A model may be any folder of this machine, or a name on the Hub.
    """
    section: Any = config.section(name)
    if name not in config.untrusted or getattr(section, "extractor", "") in _installed():
        return
    if name in BUILT_IN:
        named = printable("', '".join(loaded_names(section)))
        problem = f"features.{name}.model: got '{named}' from the cache, expected a model that you name"
    else:
        problem = (
            f"features.{name}.extractor: got '{section.extractor}' from the cache, expected an extractor that an "
            f"installed package names in its entry points '{ENTRY_POINTS}'"
        )
    raise UsageError(f"{problem}. If you trust it, name it in a config of your own.")


def entry_points() -> list[importlib.metadata.EntryPoint]:
    """Return the extractors of installed packages, by name.

    Metadata in the working folder, or beside the program that runs, does not count: a cache may have come with it.
    """
    places = {os.path.realpath(os.getcwd()), os.path.realpath(sys.path[0])}
    paths = [path for path in sys.path[1:] if os.path.realpath(path) not in places]
    packages = importlib.metadata.distributions(path=paths)
    points = [point for package in packages for point in package.entry_points.select(group=ENTRY_POINTS)]
    return sorted(points, key=lambda point: point.name)


@cache
def _installed() -> frozenset[str]:
    """Return "module:Class" of each extractor of an installed package."""
    return frozenset(point.value for point in entry_points())


def check_requirement(spec: FeatureSpec) -> None:
    """Raise ``UsageError`` if a package that the feature needs is not installed."""
    with _calling(spec.name, f": '{spec.extractor}' fails"):
        missing = extractor_class(spec.name, spec.extractor).missing_requirement(spec.arguments)
    if missing is not None:
        raise UsageError(f"feature '{spec.name}': {missing}")


def extractor_class(name: str, extractor: str) -> Any:
    """Return the class that "module:Class" names.

    Raise ``UsageError`` for the feature ``name`` if it cannot be imported, or is not an extractor.
    """
    with _calling(name, f".extractor: cannot import '{extractor}'"):
        cls = resolve_name(extractor)
    if not (isinstance(cls, type) and issubclass(cls, Extractor)):
        raise UsageError(
            f"features.{name}.extractor: got '{extractor}', expected a subclass of chordcache.features.base.Extractor"
        )
    return cls
