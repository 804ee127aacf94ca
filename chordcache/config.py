"""YAML to a frozen, validated configuration. Plain data: it opens nothing but the YAML file named by the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from chordcache.errors import ConfigError, NotFound

CODECS = ("jpeg", "raw")
FRAME_TIERS = ("lmdb",)


@dataclass(frozen=True)
class FramesConfig:
    """How frames are cached."""

    tier: str = "lmdb"
    codec: str = "jpeg"
    """"jpeg", or "raw" for RGB24"""
    quality: int = 90
    """JPEG quality, 1 to 100"""
    short_side: int | None = 256
    """[pixels] of the display picture, even, never enlarged; None keeps the source's size"""
    fps: float | None = None
    """[frames per second] at most; None keeps every frame"""

    def __post_init__(self) -> None:
        _one_of("frames.tier", self.tier, FRAME_TIERS)
        _one_of("frames.codec", self.codec, CODECS)
        _in_range("frames.quality", self.quality, int, 1, 100)
        if self.short_side is not None:
            _in_range("frames.short_side", self.short_side, int, 2, 16384)
            if self.short_side % 2:
                raise ConfigError(f"frames.short_side: got {self.short_side}, must be even")
        if self.fps is not None:
            _in_range("frames.fps", self.fps, (int, float), 0.001, 1000)


@dataclass(frozen=True)
class Config:
    """What a build makes of each video."""

    frames: FramesConfig | None = field(default_factory=FramesConfig)


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}: got {value!r}, must be one of {', '.join(allowed)}")


def _in_range(name: str, value: Any, kinds: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise ConfigError(f"{name}: got {value!r}, must be a number from {low} to {high}")


def _section(cls: type, name: str, data: Any) -> Any:
    """One dataclass from one mapping; an unknown key is an error that lists the valid ones."""
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise ConfigError(f"{name}: got {data!r}, must be a mapping or null")
    valid = [f.name for f in dataclasses.fields(cls)]
    for key in data:
        if key not in valid:
            raise ConfigError(f"unknown key '{name}.{key}'; valid keys are {', '.join(valid)}")
    return cls(**data)


def config_from_json(data: Any) -> Config:
    """Merge plain data deeply onto the packaged defaults.

    Parameters
    ----------
    data : Mapping or None
        The shape of ``configs/default.yaml``; keys left out keep their defaults, null takes a feature out.

    Raises
    ------
    ConfigError
        If a key is unknown or a value is out of range.
    """
    data = {} if data is None else data
    if not isinstance(data, Mapping):
        raise ConfigError(f"a config is a mapping of sections, got {type(data).__name__}")
    valid = [f.name for f in dataclasses.fields(Config)]
    for key in data:
        if key not in valid:
            raise ConfigError(f"unknown key '{key}'; valid keys are {', '.join(valid)}")
    return Config(frames=_section(FramesConfig, "frames", data.get("frames", {})))


def load_config(path: str | Path | None) -> Config:
    """Read a YAML file onto the packaged defaults; None gives the defaults.

    Raises
    ------
    NotFound
        If there is no such file.
    ConfigError
        If it is not YAML, or as ``config_from_json``.
    """
    if path is None:
        return Config()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFound(f"no config file '{path}'") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config '{path}': {error}") from None
    try:
        return config_from_json(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"config '{path}' is not YAML: {' '.join(str(error).split())}") from None
    except ConfigError as error:
        raise ConfigError(f"config '{path}': {error}") from None
