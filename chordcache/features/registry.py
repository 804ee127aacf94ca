"""Which extractor makes a feature, with which parameters, and the fingerprint that follows from them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from chordcache.config import Config, FlowConfig, FramesConfig, MelConfig, MotionConfig, PluginConfig, PoseConfig
from chordcache.errors import ConfigError, UsageError
from chordcache.features.base import Extractor
from chordcache.storage import layout

_EXTRACTORS = {
    "frames": "chordcache.features.frames:FramesExtractor",
    "flow": "chordcache.features.flow:FlowExtractor",
    "motion": "chordcache.features.motion:MotionExtractor",
    "mel": "chordcache.features.mel:MelExtractor",
    "pose": "chordcache.features.pose:PoseExtractor",
}
"""Feature to "module:Class"; imported when the feature is asked for, so that nobody pays for what he does not use."""


@dataclass(frozen=True)
class FeatureSpec:
    """A feature that a config asks for, resolved."""

    name: str
    extractor: str
    """"module:Class\""""
    arguments: Mapping[str, Any]
    """Keyword arguments of the class"""
    params: Mapping[str, Any]
    """The arguments, and under "picture" how pictures are scaled and chosen, as far as it changes the numbers"""
    fingerprint: str
    is_local: bool
    is_of_sound: bool
    units: Mapping[str, str]
    """As ``Extractor`` has them; of sound is what needs it and has a clock of its own"""

    def make(self) -> Extractor:
        """A new extractor, for one video."""
        extractor: Extractor = _class_of(self.name, self.extractor)(self.name, **self.arguments)
        return extractor


def resolve(name: str, config: Config) -> FeatureSpec:
    """Look up one of ``config.names()``.

    Raises
    ------
    ConfigError
        If its extractor cannot be imported, or does not take its parameters.
    """
    feature = config.picture if name == "frames" else config.features[name]
    arguments, of_pictures = _parameters(feature, config.picture)
    extractor = feature.extractor if isinstance(feature, PluginConfig) else _EXTRACTORS[name]
    cls = _class_of(name, extractor)
    try:
        inspect.signature(cls).bind(name, **arguments)
    except TypeError as error:
        raise ConfigError(f"features.{name}: '{extractor}' does not take its parameters: {error}") from None
    params = {**arguments, "picture": _picture_params(config.picture, of_pictures)}
    fingerprint = layout.fingerprint(extractor, cls.version, params)
    return FeatureSpec(
        name, extractor, arguments, params, fingerprint, cls.is_local, cls.needs_sound and not cls.is_local, cls.units
    )


def check_requirement(spec: FeatureSpec) -> None:
    """Raise ``UsageError`` if something has to be installed before the feature can be made."""
    missing = _class_of(spec.name, spec.extractor).missing_requirement()
    if missing is not None:
        raise UsageError(f"feature '{spec.name}': {missing}")


def _parameters(feature: Any, picture: FramesConfig) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keyword arguments of the extractor, and the settings of pictures that change its numbers."""
    match feature:
        case FramesConfig(codec="raw"):
            return {"codec": "raw"}, ("short_side", "fps", "hdr", "stereo")
        case FramesConfig():
            return {"codec": "jpeg", "quality": feature.quality}, ("short_side", "fps", "hdr", "stereo")
        case FlowConfig():
            preset = {"preset": feature.preset} if feature.method == "dis" else {}
            short_side = feature.short_side or picture.short_side
            flow = {"method": feature.method, **preset, "short_side": short_side, "dtype": feature.dtype}
            return flow, ("fps", "hdr", "stereo")
        case MotionConfig():
            return {}, ("fps", "stereo")
        case MelConfig():
            fmax = None if feature.fmax is None else float(feature.fmax)
            mel = {**asdict(feature), "fmin": float(feature.fmin), "fmax": fmax}
            del mel["tier"]
            return mel, ("fps",)  # its numbers do not change, but the timeline beside them does
        case PoseConfig():
            return {"stride": feature.stride}, ("short_side", "fps", "hdr", "stereo")
        case _:
            return dict(feature.params), ("short_side", "fps", "hdr", "stereo")


def _picture_params(picture: FramesConfig, names: tuple[str, ...]) -> dict[str, Any]:
    params = {name: getattr(picture, name) for name in names}
    if params.get("fps") is not None:
        params["fps"] = float(params["fps"])
    if params.get("stereo", "as_is") != "as_is":
        params["stereo_layout"] = picture.stereo_layout
    return params


def _class_of(name: str, extractor: str) -> Any:
    module, _, attribute = extractor.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # noqa: BLE001 # item boundary: a plug-in is anybody's code
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"features.{name}.extractor: cannot import '{extractor}': {what}") from None
    if not (isinstance(cls, type) and issubclass(cls, Extractor)):
        raise ConfigError(f"features.{name}.extractor: '{extractor}' is no subclass of chordcache.Extractor")
    return cls
