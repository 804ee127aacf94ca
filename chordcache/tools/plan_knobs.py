"""The settings that make a cache smaller or its build shorter, from weak to strong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chordcache.config.config import config_from_json, config_to_json
from chordcache.config.frames import CODEC_SETTINGS, FramesConfig
from chordcache.pipeline.requested import requested_features
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.tools.plan_sample import Settings


@dataclass(frozen=True)
class Knob:
    """One setting of the config."""

    path: str
    """Section and key, such as "frames.quality" """
    values: tuple[Any, ...]
    """Values from weak to strong, all numbers or all names"""
    of_rate: bool = False
    """True if the values are parts of the frame rate of the videos"""


KNOBS = (
    Knob("frames.codec", ("mpeg4", "h264")),
    Knob("frames.quality", (80, 70)),
    Knob("frames.quantizer", (3, 4)),
    Knob("frames.crf", (20, 23)),
    Knob("frames.gop", (16,)),
    Knob("frames.short_side", (224, 192, 160)),
    Knob("frames.fps", (1 / 2, 1 / 4), of_rate=True),
    Knob("features.flow.dtype", ("float16", "int8")),
    Knob("features.flow.method", ("dis",)),
    Knob("hdf5.compression", ("gzip",)),
)
"""Knobs in the order in which they are printed. A knob that saves nothing is left out."""

_OF_CODECS = frozenset(f"frames.{name}" for names in CODEC_SETTINGS.values() for name in names)
"""Settings that only some codecs have"""

_OF_RECORDS = _OF_CODECS | {"frames.codec"}
"""Knobs of the section "frames" that have no effect on the pictures that other features are made from"""


@dataclass(frozen=True)
class Change:
    """A change of the settings of a build."""

    label: str
    """Key of the config and its value, or option"""
    apply: Callable[[Settings], Settings]


def changes_of(settings: Settings, fps: float) -> Iterator[tuple[Change, ...]]:
    """Yield the possible changes of each knob, from weak to strong. The last ones leave tiers out.

    Parameters
    ----------
    settings : Settings
        The settings to change.
    fps : float
        [frames per second] of the videos.
    """
    features = requested_features(settings.config, settings.tiers, settings.features)
    made = {*features, *(name for names in features.values() for name in names)}
    for knob in KNOBS:
        section, name, *_ = knob.path.split(".")
        is_picture = section == "frames" and settings.config.frames is not None and knob.path not in _OF_RECORDS
        codec = settings.config.frames.codec if settings.config.frames else "raw"
        if knob.path in _OF_CODECS and name not in CODEC_SETTINGS[codec]:
            continue
        if knob.path == "frames.short_side" and settings.config.picture.buckets is not None:
            continue
        if is_picture or (name if section == "features" else section) in made:
            values = _stronger(knob, settings, fps)
            yield tuple(Change(f"{knob.path}: {value}", partial(_set, knob.path, value)) for value in values)
    for tier in TIERS:
        if tier in features and _without(tier, settings) != settings:
            yield (Change(f"without --tier {tier}", partial(_without, tier)),)


def _stronger(knob: Knob, settings: Settings, fps: float) -> list[Any]:
    """Return the values of a knob that are stronger than the present one."""
    present: Any = config_to_json(settings.config)
    for key in knob.path.split("."):
        present = present[key]
    values = [round(value * fps, 3) for value in knob.values] if knob.of_rate else list(knob.values)
    if present is None:
        return values
    if isinstance(present, str):
        return values[values.index(present) + 1 :] if present in values else values
    sign = 1 if values[-1] > values[0] else -1
    return [value for value in values if sign * value > sign * present]


def _set(path: str, value: Any, settings: Settings) -> Settings:
    data = config_to_json(settings.config)
    *sections, key = path.split(".")
    section: dict[str, Any] = data
    for name in sections:
        section = section[name]
    section[key] = value
    if path == "frames.codec" or path in _OF_CODECS:  # the codec may have been changed by a knob before this one
        defaults = FramesConfig()
        others = {name for names in CODEC_SETTINGS.values() for name in names}.difference(
            CODEC_SETTINGS[section["codec"]]
        )
        section.update({name: getattr(defaults, name) for name in others})
    return replace(settings, config=config_from_json(data))


def _without(tier: str, settings: Settings) -> Settings:
    """Return settings without a tier, or the same ones if other tiers do not have all its features."""
    features = requested_features(settings.config, settings.tiers, settings.features)
    others = {name for other, names in features.items() if other != tier for name in names}
    if not others.issuperset(features.get(tier, ())):
        return settings
    return replace(settings, tiers=tuple(other for other in settings.tiers if other != tier))
