"""The sections of ``features`` in a config: the settings of each feature."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from chordcache.config.checks import check_choice, check_model, check_number, check_short_side, lowest_band_hertz
from chordcache.errors import ConfigError

_PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


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
    """Folder of a T5, UMT5 or CLIP text encoder, or its name on the Hugging Face Hub"""
    tokenizer: str | None = None
    """Folder or name of the tokenizer. None means that it is with the model"""
    max_tokens: int | None = None
    """Largest number of tokens. None means that of the tokenizer"""
    dtype: str = "float16"
    device: str = "auto"
    """Device of the network: "auto", "cpu", "cuda" or "cuda:N". It does not change the fingerprint"""

    def __post_init__(self) -> None:
        check_model("features.text.model", self.model)
        if self.tokenizer is not None:
            check_model("features.text.tokenizer", self.tokenizer)
        if self.max_tokens is not None:
            check_number("features.text.max_tokens", self.max_tokens, int, 1, 1 << 20)
        check_choice("features.text.dtype", self.dtype, ("float16", "float32"))


@dataclass(frozen=True)
class LatentsConfig:
    """Latents of a VAE."""

    model: str = ""
    """Folder of an AutoencoderKL, AutoencoderKLCogVideoX or AutoencoderKLWan of diffusers, or its name on the Hub"""
    clip_frames: int = 81
    """[frames] Length of the clips that a VAE which compresses time gets: 1 plus a multiple of its compression"""
    fit: str = "pad"
    """Choice for pictures and clips of a size that the VAE cannot take: "pad" or "refuse" """
    dtype: str = "float16"
    batch_size: int = 4
    """Largest number of pictures or clips that are encoded at once. It does not change the fingerprint"""
    device: str = "auto"
    """Device of the network: "auto", "cpu", "cuda" or "cuda:N". It does not change the fingerprint"""

    def __post_init__(self) -> None:
        check_model("features.latents.model", self.model)
        check_number("features.latents.clip_frames", self.clip_frames, int, 1, 4097)
        check_choice("features.latents.fit", self.fit, ("pad", "refuse"))
        check_choice("features.latents.dtype", self.dtype, ("float16", "float32"))


@dataclass(frozen=True)
class EmbedConfig:
    """Embedding of each kept frame."""

    model: str = ""
    """Folder of a CLIP, SigLIP or DINOv2 model, or its name on the Hugging Face Hub"""
    output: str = "pooled"
    """"pooled"; "projected", which CLIP has; or "tokens" """
    dtype: str = "float16"
    batch_size: int = 32
    """Largest number of frames that the network gets at once. It does not change the fingerprint"""
    device: str = "auto"
    """Device of the network: "auto", "cpu", "cuda" or "cuda:N". It does not change the fingerprint"""

    def __post_init__(self) -> None:
        check_model("features.embed.model", self.model)
        check_choice("features.embed.output", self.output, ("pooled", "projected", "tokens"))
        check_choice("features.embed.dtype", self.dtype, ("float16", "float32"))


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
    "FlowConfig | MotionConfig | MelConfig | WaveformConfig | PoseConfig | TextConfig | LatentsConfig | "
    "EmbedConfig | PluginConfig"
)

FEATURE_SECTIONS: Mapping[str, type[Any]] = {
    "flow": FlowConfig,
    "motion": MotionConfig,
    "mel": MelConfig,
    "waveform": WaveformConfig,
    "pose": PoseConfig,
    "text": TextConfig,
    "latents": LatentsConfig,
    "embed": EmbedConfig,
}
"""Class of the settings of each built-in feature but frames"""
