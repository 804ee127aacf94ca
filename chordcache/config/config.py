"""The configuration as frozen, validated dataclasses, and as plain data."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from chordcache.arguments import did_you_mean
from chordcache.config.checks import Section, check_keys
from chordcache.config.features import FEATURE_SECTIONS, FlowConfig, MelConfig, MotionConfig, PluginConfig
from chordcache.config.picture import FramesConfig, PictureConfig
from chordcache.errors import UsageError

_FEATURE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_LOADED = ("extractor", "model", "tokenizer", "pooled_model", "pooled_tokenizer")
"""Keys of a feature that name code, or files outside of a cache"""
_TAKEN_NAMES = ("frames", "pts_seconds", "source_frames", "keyframes")

_TRAIN_SECTIONS = ("source", "dataset", "clip_sampler", "crop", "augment", "collate", "sampler", "loader")
"""Keys of ``train``. Each has a mapping with a name and arguments, only ``dataset`` does not have a name"""


@dataclass(frozen=True)
class Hdf5Config:
    """The features in HDF5 files."""

    features: tuple[str, ...] = ("frames", "flow", "mel")
    """Features that the file of a video has"""

    def __post_init__(self) -> None:
        names: Any = self.features
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise UsageError(f"hdf5.features: got {names!r}, expected a list of feature names")
        if len(set(names)) < len(names):
            raise UsageError(f"hdf5.features: got {list(names)}, expected each name once")
        object.__setattr__(self, "features", tuple(names))


@dataclass(frozen=True)
class Config:
    """The configuration of a build, and of the training that reads its result."""

    frames: FramesConfig | None = field(default_factory=FramesConfig)
    features: Mapping[str, Section] = field(
        default_factory=lambda: {"flow": FlowConfig(), "motion": MotionConfig(), "mel": MelConfig()}
    )
    hdf5: Hdf5Config = field(default_factory=Hdf5Config)
    tiers: tuple[str, ...] = field(default=("lmdb",), compare=False)
    """Tiers that a build makes if it is not asked for certain tiers or features"""
    train: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Settings of datasets and loaders, as plain data. Caches do not depend on them: configs that only differ here are
    equal, and ``config_to_json`` leaves them out"""
    untrusted: frozenset[str] = field(default=frozenset(), compare=False)
    """Features whose class or model a cache names, and not the user. They are made only by installed plug-ins"""

    def __post_init__(self) -> None:
        if self.train != {}:
            object.__setattr__(self, "train", _checked_train(self.train))
        tiers: Any = self.tiers
        if not isinstance(tiers, (list, tuple)) or not tiers:
            raise UsageError(f"tiers: got {self.tiers!r}, expected a list of tiers, such as [lmdb, npz]")
        object.__setattr__(self, "tiers", tuple(tiers))
        for name, section in self.features.items():
            expected = FEATURE_SECTIONS.get(name, PluginConfig)
            if not isinstance(section, expected):
                raise UsageError(
                    f"features.{name}: got a {type(section).__name__}, expected a {expected.__name__}. Choose another "
                    "name for a feature of your own."
                )

    @property
    def picture(self) -> PictureConfig:
        """Settings of decoded pictures, also if frames themselves are not cached."""
        frames = self.frames or FramesConfig()
        return PictureConfig(**{f.name: getattr(frames, f.name) for f in dataclasses.fields(PictureConfig)})

    def section(self, name: str) -> Section:
        """Return the settings of a feature."""
        if name != "frames" and name not in self.features:
            raise UsageError(f"features.{name}: got no section, expected one. Add it to the config.")
        return (self.frames or FramesConfig()) if name == "frames" else self.features[name]

    def names(self) -> tuple[str, ...]:
        """Return the names of all features that are not removed."""
        return (*(("frames",) if self.frames else ()), *self.features)

    def in_tier(self, tier: str) -> tuple[str, ...]:
        """Return the features that a tier holds. Raise ``UsageError`` if ``hdf5.features`` names another one."""
        if tier == "lmdb":
            return ("frames",) if self.frames else ()
        if tier == "npz":
            return tuple(self.features)
        for name in self.hdf5.features:
            if name not in self.names():
                similar = did_you_mean(name, self.names()) or "."
                raise UsageError(f"hdf5.features: got '{name}', expected some of {', '.join(self.names())}{similar}")
        return self.hdf5.features


def _checked_train(data: Any) -> dict[str, Any]:
    """Return the sections of ``train`` that are not null. Names and arguments are checked later.

    Raises ``UsageError`` if a section is unknown, does not have a name, or has something else than plain JSON data.
    """
    if not isinstance(data, Mapping):
        raise UsageError(f"train: got {data!r}, expected a mapping of sections")
    check_keys("train.", data, _TRAIN_SECTIONS)
    sections = {key: section for key, section in data.items() if section is not None}
    for key, section in sections.items():
        _check_train(key, section)
    try:
        json.dumps(sections, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"train: got a value other than plain data: {error}") from None
    return sections


def _check_train(key: str, section: Any) -> None:
    if key == "dataset":
        if not isinstance(section, Mapping):
            raise UsageError(f"train.{key}: got {section!r}, expected a mapping of arguments")
        return
    if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
        raise UsageError(f"train.{key}: got {section!r}, expected a mapping with a name and arguments")


def trusted_names(config: Config) -> frozenset[str]:
    """Return the classes of plug-ins, the models and the tokenizers that the user has named in a config."""
    trusted = [section for name, section in config.features.items() if name not in config.untrusted]
    return frozenset(name for section in trusted for name in loaded_names(section))


def loaded_names(section: Any) -> list[str]:
    """Return what a feature loads: the class of a plug-in, or the model and the tokenizer of a network."""
    names = (getattr(section, key, None) for key in _LOADED)
    return [name for name in names if name]


_SECTIONS = [f.name for f in dataclasses.fields(Config) if f.name != "untrusted"]


def _section(cls: type, name: str, data: Any) -> Any:
    """Return one dataclass from one mapping. An unknown key is an error that lists the valid ones."""
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise UsageError(f"{name}: got {data!r}, expected a mapping or null")
    check_keys(f"{name}.", data, [f.name for f in dataclasses.fields(cls)])
    return cls(**data)


def _features(data: Any) -> dict[str, Section]:
    """Return the features that remain after ``data`` is merged onto the defaults."""
    features = dict(Config().features)
    if data is not None and not isinstance(data, Mapping):
        raise UsageError(f"features: got {data!r}, expected a mapping")
    for name, section in (data or {}).items():
        features.pop(name, None)
        if section is not None:
            features[name] = _feature(name, section)
    return features


def _feature(name: Any, section: Any) -> Section:
    if name in FEATURE_SECTIONS:
        feature: Section = _section(FEATURE_SECTIONS[name], f"features.{name}", section)
        return feature
    if not isinstance(name, str) or not _FEATURE_NAME.fullmatch(name) or name in _TAKEN_NAMES:
        raise UsageError(
            f"features: got the name {name!r}, expected lower case letters, digits and _, and not one of "
            f"{', '.join(_TAKEN_NAMES)}"
        )
    if not isinstance(section, Mapping) or "extractor" not in section:
        raise UsageError(
            f"features.{name}: got an unknown feature, expected one of {', '.join(FEATURE_SECTIONS)}, "
            f"or one of your own with 'extractor: package.module:Class'{did_you_mean(name, FEATURE_SECTIONS)}"
        )
    params = {key: value for key, value in section.items() if key != "extractor"}
    return PluginConfig(name, section["extractor"], params)


def config_from_json(data: Any, onto: Config | None = None, *, trusted: Collection[str] | None = None) -> Config:
    """Merge plain data deeply onto the packaged defaults, or onto another config.

    Parameters
    ----------
    data : Mapping or None
        Data in the shape of ``docs/reference/default.yaml``. Missing keys keep their defaults. null removes a feature.
    onto : Config, optional
        Config whose values missing keys keep instead, such as that of an existing cache. null keeps a feature of it.
    trusted : collection of str, optional
        For the config of a cache: what the user has named, see ``trusted_names``. A cache may come from anyone, and
        must not choose the code that runs or the files that are read. By default, ``data`` is of the user, who may
        name anything.

    Raises
    ------
    UsageError
        If a key is unknown or a value is out of range.
    """
    data = {} if data is None else data
    if not isinstance(data, Mapping):
        raise UsageError(f"got a {type(data).__name__}, expected a mapping of sections")
    own = data.get("features") or {}
    if onto is not None:
        data = merged(config_to_json(onto), data, keeps_features=True)
    check_keys("", data, _SECTIONS)
    features = _features(data.get("features"))
    untrusted = [
        name
        for name, section in features.items()
        if not (_is_trusted(name, section, own, onto) if trusted is None else {*loaded_names(section)} <= {*trusted})
    ]
    return Config(
        frames=_section(FramesConfig, "frames", data.get("frames", {})),
        features=features,
        hdf5=_section(Hdf5Config, "hdf5", data.get("hdf5") or {}),
        tiers=data.get("tiers") or ("lmdb",),
        train=data.get("train") or {},
        untrusted=frozenset(untrusted),
    )


def _is_trusted(name: str, section: Section, own: Mapping[str, Any], onto: Config | None) -> bool:
    """Return whether the user's section names what the feature loads, or has it from a config that is trusted."""
    if onto is None or name not in onto.untrusted:
        return True
    named = own.get(name) or {}
    return {*loaded_names(section)} <= {named.get(key) for key in _LOADED}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any], *, keeps_features: bool = False) -> dict[str, Any]:
    """Return plain data with the values of ``changes``, and those of ``base`` that these do not name.

    With ``keeps_features``, null only does not ask for a feature.
    """
    data, sections = dict(base), config_sections()
    for key, value in changes.items():
        before = data.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            lasting = sections.get(key, PluginConfig).lasting(before, value)
            data[key] = merged(lasting, value, keeps_features=keeps_features)
        elif value is not None or not keeps_features or key not in sections:
            data[key] = value
    return data


def config_to_json(config: Config) -> dict[str, Any]:
    """Serialize a config to plain data, without ``train``. ``config_from_json`` reads it back."""
    data = dataclasses.asdict(dataclasses.replace(config, train={}))
    del data["train"], data["untrusted"]
    for name in Config().features:
        data["features"].setdefault(name, None)
    for name, feature in config.features.items():
        if isinstance(feature, PluginConfig):
            data["features"][name] = {"extractor": feature.extractor, **feature.params}
    return data


def config_sections() -> dict[str, type[Any]]:
    """Return the class of settings of each built-in feature."""
    return {"frames": FramesConfig, **FEATURE_SECTIONS}
