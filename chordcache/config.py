"""The configuration: YAML to frozen, validated dataclasses. It opens only the file or the preset that is named."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from chordcache.config_checks import check_choice, check_number, check_short_side, lowest_band_hertz
from chordcache.errors import ConfigError, NotFoundError, printable
from chordcache.frames_config import FramesConfig, PictureConfig
from chordcache.presets import is_preset_like, preset_names, preset_path
from chordcache.suggestions import did_you_mean
from chordcache.train_config import checked_train


@dataclass(frozen=True)
class FlowConfig:
    """Dense optical flow from each kept frame to the next."""

    method: str = "farneback"
    preset: str = "fast"
    """Preset of DIS. Farneback has none"""
    short_side: int | None = None
    """[pixels] as ``FramesConfig.short_side``. None takes the value of frames"""
    dtype: str = "float16"

    def __post_init__(self) -> None:
        check_choice("features.flow.method", self.method, ("farneback", "dis"))
        check_choice("features.flow.preset", self.preset, ("ultrafast", "fast", "medium"))
        check_short_side("features.flow.short_side", self.short_side)
        check_choice("features.flow.dtype", self.dtype, ("float32", "float16", "int8"))


@dataclass(frozen=True)
class MotionConfig:
    """The codec's motion vectors on a grid of 16x16 blocks."""


@dataclass(frozen=True)
class MelConfig:
    """Log-mel spectrogram of the audio track."""

    sample_rate: int = 16000
    """[Hz] Rate that the sound is resampled to"""
    n_fft: int = 400
    """[samples] Length of a window"""
    hop_length: int = 160
    """[samples] Distance from one row to the next"""
    n_mels: int = 80
    fmin: float = 0.0
    """[Hz]"""
    fmax: float | None = None
    """[Hz] None means half the sample rate"""
    mono: bool = True
    """True to mix all channels to one. Otherwise one spectrogram for each"""

    def __post_init__(self) -> None:
        check_number("features.mel.sample_rate", self.sample_rate, int, 1000, 192000)
        check_number("features.mel.n_fft", self.n_fft, int, 16, 65536)
        check_number("features.mel.hop_length", self.hop_length, int, 1, self.n_fft)
        check_number("features.mel.n_mels", self.n_mels, int, 1, self.n_fft // 2 + 1)
        nyquist = self.sample_rate / 2
        check_number("features.mel.fmin", self.fmin, (int, float), 0, nyquist)
        if self.fmax is not None:
            check_number("features.mel.fmax", self.fmax, (int, float), 0, nyquist)
        fmax = nyquist if self.fmax is None else self.fmax
        if self.fmin >= fmax:
            raise ConfigError(f"features.mel.fmin: got {self.fmin}, expected a frequency below fmax")
        if lowest_band_hertz(self.fmin, fmax, self.n_mels) <= self.sample_rate / self.n_fft:
            raise ConfigError(
                f"features.mel.n_mels: got {self.n_mels}, expected a lowest band that is not narrower than a bin of "
                f"n_fft {self.n_fft}. Take fewer bands or a longer window."
            )
        check_choice("features.mel.mono", self.mono, (True, False))


@dataclass(frozen=True)
class WaveformConfig:
    """Samples of the audio track."""

    sample_rate: int | None = 16000
    """[Hz] Rate that the sound is resampled to. None keeps the rate of each track"""
    dtype: str = "float32"
    channels: str = "mono"
    """"mono" to mix all channels to one. "all" keeps them"""

    def __post_init__(self) -> None:
        if self.sample_rate is not None:
            check_number("features.waveform.sample_rate", self.sample_rate, int, 1000, 192000)
        check_choice("features.waveform.dtype", self.dtype, ("float32", "int16"))
        check_choice("features.waveform.channels", self.channels, ("mono", "all"))


@dataclass(frozen=True)
class PoseConfig:
    """Body landmarks of one person per kept frame."""

    stride: int = 1
    """Number of kept frames from one search for a person to the next"""

    def __post_init__(self) -> None:
        check_number("features.pose.stride", self.stride, int, 1, 1000)


@dataclass(frozen=True)
class TextConfig:
    """Embedding of the caption."""

    model: str = ""
    """Folder of a T5, UMT5 or CLIP text encoder with its tokenizer, or its name on the Hugging Face Hub"""
    max_tokens: int | None = None
    """Largest number of tokens. None means that of the tokenizer"""
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if not isinstance(self.model, str):
            raise ConfigError(f"features.text.model: got {self.model!r}, expected a folder or a name")
        if self.max_tokens is not None:
            check_number("features.text.max_tokens", self.max_tokens, int, 1, 1 << 20)
        check_choice("features.text.dtype", self.dtype, ("float16", "float32"))


@dataclass(frozen=True)
class PluginConfig:
    """A feature made by a third-party extractor."""

    name: str
    extractor: str
    """"package.module:Class\""""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class, as plain JSON data"""

    def __post_init__(self) -> None:
        if not isinstance(self.extractor, str) or not _PLUGIN.fullmatch(self.extractor):
            raise ConfigError(
                f"features.{self.name}.extractor: got {self.extractor!r}, expected 'package.module:Class'"
            )
        try:
            json.dumps(self.params, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"features.{self.name}: got parameters other than plain data: {error}") from None


FeatureConfig: TypeAlias = (
    "FlowConfig | MotionConfig | MelConfig | WaveformConfig | PoseConfig | TextConfig | PluginConfig"
)

_FEATURES: Mapping[str, type[Any]] = {
    "flow": FlowConfig,
    "motion": MotionConfig,
    "mel": MelConfig,
    "waveform": WaveformConfig,
    "pose": PoseConfig,
    "text": TextConfig,
}
_PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_FEATURE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TAKEN_NAMES = ("frames", "pts_seconds", "source_frames", "keyframes")


@dataclass(frozen=True)
class Hdf5Config:
    """The features in HDF5 files, and the settings of these files."""

    features: tuple[str, ...] = ("frames", "flow", "mel")
    chunk_frames: int = 1
    """Rows of a chunk. 1 reads random clips fastest"""
    compression: str = "none"

    def __post_init__(self) -> None:
        names: Any = self.features
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"hdf5.features: got {names!r}, expected a list of feature names")
        if len(set(names)) < len(names):
            raise ConfigError(f"hdf5.features: got {list(names)}, expected each name once")
        object.__setattr__(self, "features", tuple(names))
        check_number("hdf5.chunk_frames", self.chunk_frames, int, 1, 4096)
        check_choice("hdf5.compression", self.compression, ("none", "lzf", "gzip"))


@dataclass(frozen=True)
class Config:
    """The configuration of a build, and of the training that reads its result."""

    frames: FramesConfig | None = field(default_factory=FramesConfig)
    features: Mapping[str, FeatureConfig] = field(
        default_factory=lambda: {"flow": FlowConfig(), "motion": MotionConfig(), "mel": MelConfig()}
    )
    hdf5: Hdf5Config = field(default_factory=Hdf5Config)
    train: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Settings of datasets and loaders, as plain data. Caches do not depend on them: configs that only differ here are
    equal, and ``config_to_json`` leaves them out"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", checked_train(self.train))
        for name, section in self.features.items():
            expected = _FEATURES.get(name, PluginConfig)
            if not isinstance(section, expected):
                raise ConfigError(
                    f"features.{name}: got a {type(section).__name__}, expected a {expected.__name__}. Choose another "
                    "name for a feature of your own."
                )

    @property
    def picture(self) -> PictureConfig:
        """Settings of decoded pictures, also if frames themselves are not cached."""
        return (self.frames or FramesConfig()).picture

    @property
    def on_damage(self) -> str:
        """Choice for damaged files, also if frames themselves are not cached."""
        return (self.frames or FramesConfig()).on_damage

    def section(self, name: str) -> FramesConfig | FeatureConfig:
        """Return the settings of a feature."""
        return (self.frames or FramesConfig()) if name == "frames" else self.features[name]

    def names(self) -> tuple[str, ...]:
        """Return the names of all features that are not removed."""
        return (*(("frames",) if self.frames else ()), *self.features)


def _section(cls: type, name: str, data: Any) -> Any:
    """Return one dataclass from one mapping. An unknown key is an error that lists the valid ones."""
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise ConfigError(f"{name}: got {data!r}, expected a mapping or null")
    _check_keys(f"{name}.", data, [f.name for f in dataclasses.fields(cls)])
    return cls(**data)


def _check_keys(prefix: str, data: Mapping[str, Any], valid: Sequence[str]) -> None:
    for key in data:
        if key not in valid:
            names = f"{', '.join(valid)}{did_you_mean(key, valid)}"
            raise ConfigError(f"{prefix}{key}: got an unknown key, expected one of {names}")


def _features(data: Any) -> dict[str, FeatureConfig]:
    """Return the features that remain after ``data`` is merged onto the defaults."""
    features = dict(Config().features)
    if data is not None and not isinstance(data, Mapping):
        raise ConfigError(f"features: got {data!r}, expected a mapping")
    for name, section in (data or {}).items():
        features.pop(name, None)
        if section is not None:
            features[name] = _feature(name, section)
    return features


def _feature(name: Any, section: Any) -> FeatureConfig:
    if name in _FEATURES:
        feature: FeatureConfig = _section(_FEATURES[name], f"features.{name}", section)
        return feature
    if not isinstance(name, str) or not _FEATURE_NAME.fullmatch(name) or name in _TAKEN_NAMES:
        raise ConfigError(
            f"features: got the name {name!r}, expected lower case letters, digits and _, and not one of "
            f"{', '.join(_TAKEN_NAMES)}"
        )
    if not isinstance(section, Mapping) or "extractor" not in section:
        raise ConfigError(
            f"features.{name}: got an unknown feature, expected one of {', '.join(_FEATURES)}, "
            f"or one of your own with 'extractor: package.module:Class'{did_you_mean(name, _FEATURES)}"
        )
    params = {key: value for key, value in section.items() if key != "extractor"}
    return PluginConfig(name, section["extractor"], params)


def config_from_json(data: Any) -> Config:
    """Merge plain data deeply onto the packaged defaults.

    Parameters
    ----------
    data : Mapping or None
        Data in the shape of ``configs/default.yaml``. Missing keys keep their defaults. null removes a feature.

    Raises
    ------
    ConfigError
        If a key is unknown or a value is out of range.
    """
    data = {} if data is None else data
    if not isinstance(data, Mapping):
        raise ConfigError(f"got a {type(data).__name__}, expected a mapping of sections")
    _check_keys("", data, [f.name for f in dataclasses.fields(Config)])
    return Config(
        frames=_section(FramesConfig, "frames", data.get("frames", {})),
        features=_features(data.get("features")),
        hdf5=_section(Hdf5Config, "hdf5", data.get("hdf5") or {}),
        train=data.get("train") or {},
    )


def config_to_json(config: Config) -> dict[str, Any]:
    """Return plain data from which ``config_from_json`` makes an equal config. ``train`` is left out."""
    data = dataclasses.asdict(dataclasses.replace(config, train={}))
    del data["train"]
    for name in Config().features:
        data["features"].setdefault(name, None)
    for name, feature in config.features.items():
        if isinstance(feature, PluginConfig):
            data["features"][name] = {"extractor": feature.extractor, **feature.params}
    return data


def config_to_yaml(config: Config) -> str:
    """Return YAML from which ``load_config`` makes an equal config, with every key, ``train`` too."""
    data = json.loads(json.dumps({**config_to_json(config), "train": config.train}))  # tuples become lists
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    """The parser of ``yaml.safe_load``. Its errors about a value, such as a wrong date, have a place too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _syntax_error(name: str, text: str, error: Exception) -> ConfigError:
    """Return the error about text that is not YAML, as file:line:column with numbers from 1."""
    place, what = "", str(error)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        place = f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}"
        what = " ".join(filter(None, (error.context, error.problem)))
    elif isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        place = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        what = f"the character #x{error.character:04x}: {error.reason}"
    elif isinstance(error, RecursionError):
        what = "it is nested too deeply"
    return ConfigError(f"{name}{place}: got text that is not YAML: {printable(' '.join(what.split()))}")


def _config_file(path: str | Path) -> Path:
    """Return the YAML file that a path or the name of a preset means. A path that exists comes first."""
    if not is_preset_like(path) or os.path.isfile(path):
        return Path(path)
    names, name = preset_names(), os.fspath(path)
    if name not in names:
        valid = f"a YAML file or a preset: {', '.join(names)}{did_you_mean(name, names)}"
        raise NotFoundError(f"config: got '{printable(name)}', expected {valid}")
    return preset_path(name)


def config_sections() -> dict[str, type[Any]]:
    """Return the class of settings of each built-in feature."""
    return {"frames": FramesConfig, **_FEATURES}


def load_config(path: str | Path | None) -> Config:
    """Read a YAML file or a preset, and merge it onto the packaged defaults. None returns the defaults.

    Parameters
    ----------
    path : str or Path, optional
        A YAML file; or, if no file has this name, the name of a preset, such as ``"flow"``.

    Raises
    ------
    NotFoundError
        If the file or the preset does not exist.
    ConfigError
        If the file is not YAML. The message begins with file:line:column. Also as in ``config_from_json``.
    """
    if path is None:
        return Config()
    name = printable(path)
    try:
        text = _config_file(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if isinstance(error, NotFoundError):
            raise
        raise NotFoundError(f"no config file '{name}'") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read config '{name}': {error}") from None
    try:
        data = _Loader(text).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise _syntax_error(name, text, error) from None
    try:
        return config_from_json(data)
    except ConfigError as error:
        raise ConfigError(f"config '{name}': {error}") from None
