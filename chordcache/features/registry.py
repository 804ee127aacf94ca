"""The extractor of each feature, its parameters, and the fingerprint that follows from them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from chordcache import digests
from chordcache.config import (
    Config,
    FlowConfig,
    FramesConfig,
    MelConfig,
    MotionConfig,
    PictureConfig,
    PluginConfig,
    PoseConfig,
)
from chordcache.errors import ConfigError, UsageError
from chordcache.features.base import Extractor

_EXTRACTORS = {
    "frames": "chordcache.features.frames:FramesExtractor",
    "flow": "chordcache.features.flow:FlowExtractor",
    "motion": "chordcache.features.motion:MotionExtractor",
    "mel": "chordcache.features.mel:MelExtractor",
    "pose": "chordcache.features.pose:PoseExtractor",
}
"""Feature to "module:Class". The module is imported only if the feature is requested, so unused ones cost nothing."""


@dataclass(frozen=True)
class FeatureSpec:
    """A resolved feature of a config."""

    name: str
    extractor: str
    """"module:Class\""""
    arguments: Mapping[str, Any]
    """Keyword arguments of the class"""
    params: Mapping[str, Any]
    """Arguments, and under "picture" the ``PictureConfig``. Settings that do not change the numbers have defaults"""
    fingerprint: str
    is_local: bool
    is_of_sound: bool
    """True if the extractor needs sound and has its own clock"""
    units: Mapping[str, str]
    """Units as in ``Extractor``"""

    def make(self) -> Extractor:
        """Return a new extractor, for one video."""
        extractor: Extractor = _class_of(self.name, self.extractor)(self.name, **self.arguments)
        return extractor


def resolve(name: str, config: Config) -> FeatureSpec:
    """Return the specification of one of ``config.names()``.

    Raises
    ------
    ConfigError
        If its extractor cannot be imported, or does not accept its parameters.
    """
    feature = (config.frames or FramesConfig()) if name == "frames" else config.features[name]
    picture = config.picture.normalized()
    arguments = _arguments(feature, picture)
    extractor = feature.extractor if isinstance(feature, PluginConfig) else _EXTRACTORS[name]
    cls = _class_of(name, extractor)
    try:
        inspect.signature(cls).bind(name, **arguments)
    except TypeError as error:
        raise ConfigError(f"features.{name}: '{extractor}' does not take its parameters: {error}") from None
    params = {**arguments, "picture": asdict(_used_of(picture, feature))}
    fingerprint = digests.fingerprint(extractor, cls.version, params)
    return FeatureSpec(
        name, extractor, arguments, params, fingerprint, cls.is_local, cls.needs_sound and not cls.is_local, cls.units
    )


def check_requirement(spec: FeatureSpec) -> None:
    """Raise ``UsageError`` if a package that the feature needs is not installed."""
    missing = _class_of(spec.name, spec.extractor).missing_requirement()
    if missing is not None:
        raise UsageError(f"feature '{spec.name}': {missing}")


def _arguments(feature: Any, picture: PictureConfig) -> dict[str, Any]:
    """Return the extractor's keyword arguments."""
    match feature:
        case FramesConfig(codec="raw"):
            return {"codec": "raw"}
        case FramesConfig():
            return {"codec": "jpeg", "quality": feature.quality}
        case FlowConfig():
            preset = {"preset": feature.preset} if feature.method == "dis" else {}
            short_side = feature.short_side or picture.short_side
            return {"method": feature.method, **preset, "short_side": short_side, "dtype": feature.dtype}
        case MotionConfig():
            return {}
        case MelConfig():
            fmax = None if feature.fmax is None else float(feature.fmax)
            return {**asdict(feature), "fmin": float(feature.fmin), "fmax": fmax}
        case PoseConfig():
            return {"stride": feature.stride}
        case _:
            return dict(feature.params)


def _used_of(picture: PictureConfig, feature: Any) -> PictureConfig:
    """Return the picture settings with the default for each one that does not change the numbers of a feature."""
    default = PictureConfig()
    match feature:
        case FlowConfig():
            return replace(picture, short_side=default.short_side)  # the extractor has an argument of its own
        case MotionConfig():
            return replace(picture, short_side=default.short_side, hdr=default.hdr)
        case MelConfig():
            return PictureConfig(fps=picture.fps)  # fps changes the timeline that is stored with the numbers
        case _:
            return picture


def _class_of(name: str, extractor: str) -> Any:
    module, _, attribute = extractor.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # noqa: BLE001 # item boundary: a plug-in may raise anything
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"features.{name}.extractor: cannot import '{extractor}': {what}") from None
    if not (isinstance(cls, type) and issubclass(cls, Extractor)):
        raise ConfigError(
            f"features.{name}.extractor: got '{extractor}', expected a subclass of chordcache.features.base.Extractor"
        )
    return cls
