"""The sections of ``features`` in a config: the settings of each feature."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chordcache.config.checks import (
    Section,
    check_choice,
    check_model,
    check_number,
    check_short_side,
    mel,
)
from chordcache.errors import UsageError

_PLUGIN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_COLUMN = re.compile(r"(?!(.*\.)?(offsets|xxh3_64)$)[A-Za-z0-9_.-]{1,200}")
"""Name of a column that an array of a file can have, too"""
_FUNCTION = re.compile(r"[a-z]\w*(\.[a-z]\w*)*")


@dataclass(frozen=True)
class FlowConfig(Section):
    """Dense optical flow from each kept frame to the next."""

    method: str = "dis"
    """"dis", or "farneback", which takes twice the CPU time and is less exact"""
    preset: str = "medium"
    """Preset of DIS: "ultrafast", "fast" or "medium". Farneback has none"""
    short_side: int | None = None
    """[pixels] of the picture, even. None takes the value of frames"""
    dtype: str = "int8"
    """"float32", "float16", or "int8" with a scale for each pair of frames"""

    def __post_init__(self) -> None:
        check_choice("features.flow.method", self.method, ("farneback", "dis"))
        check_choice("features.flow.preset", self.preset, ("ultrafast", "fast", "medium"))
        check_short_side("features.flow.short_side", self.short_side)
        check_choice("features.flow.dtype", self.dtype, ("float32", "float16", "int8"))


@dataclass(frozen=True)
class MotionConfig(Section):
    """The codec's motion vectors on a grid of 16x16 blocks."""


@dataclass(frozen=True)
class MelConfig(Section):
    """Log-mel spectrogram of the audio track."""

    sample_rate: int = 16000
    """[Hz] Rate that the sound is resampled to"""
    n_fft: int = 400
    """[samples] Length of a window"""
    hop_length: int = 160
    """[samples] Distance from one row to the next"""
    n_mels: int = 80
    """Number of bands"""
    fmin: float = 0.0
    """[Hz] Lower end of the lowest band"""
    fmax: float | None = None
    """[Hz] Upper end of the highest band. None means half the sample rate"""
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
            raise UsageError(f"features.mel.fmin: got {self.fmin}, expected a frequency below fmax")
        lowest_band = 2 * (mel(fmax) - mel(self.fmin)) / (self.n_mels + 1)
        if lowest_band <= mel(self.fmin + self.sample_rate / self.n_fft) - mel(self.fmin):
            raise UsageError(
                f"features.mel.n_mels: got {self.n_mels}, expected a lowest band that is not narrower than a bin of "
                f"n_fft {self.n_fft}. Take fewer bands or a longer window."
            )
        check_choice("features.mel.mono", self.mono, (True, False))


@dataclass(frozen=True)
class WaveformConfig(Section):
    """Samples of the audio track."""

    sample_rate: int | None = 16000
    """[Hz] Rate that the sound is resampled to. None keeps the rate of each track"""
    dtype: str = "float32"
    """"float32", or "int16" with half the bytes"""
    channels: str = "mono"
    """"mono" to mix all channels to one. "all" keeps them"""

    def __post_init__(self) -> None:
        if self.sample_rate is not None:
            check_number("features.waveform.sample_rate", self.sample_rate, int, 1000, 192000)
        check_choice("features.waveform.dtype", self.dtype, ("float32", "int16"))
        check_choice("features.waveform.channels", self.channels, ("mono", "all"))


@dataclass(frozen=True)
class LibrosaConfig(Section):
    """Any function of librosa that turns a signal into columns, one for each hop."""

    ends: ClassVar[Mapping[str, tuple[str, ...]]] = {"function": ("params",)}
    function: str = "feature.mfcc"
    """Name of the function below ``librosa``"""
    sample_rate: int = 22050
    """[Hz] Rate that the sound is resampled to"""
    hop_length: int = 512
    """[samples] Distance from one row to the next"""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the function, as plain data, such as {n_mfcc: 13}"""

    def __post_init__(self) -> None:
        if not isinstance(self.function, str) or not _FUNCTION.fullmatch(self.function):
            raise UsageError(
                f"features.librosa.function: got {self.function!r}, expected a name below librosa, such as feature.mfcc"
            )
        check_number("features.librosa.sample_rate", self.sample_rate, int, 1000, 192000)
        check_number("features.librosa.hop_length", self.hop_length, int, 1, 65536)
        _check_plain("features.librosa.params", self.params)
        for name in ("y", "sr", "hop_length", "center"):
            if name in self.params:
                raise UsageError(
                    f"features.librosa.params: got {name}, expected other parameters. The signal, its rate, "
                    "hop_length and center are set already."
                )


@dataclass(frozen=True)
class PoseConfig(Section):
    """Body landmarks of one person per kept frame."""

    stride: int = 1
    """Number of kept frames from one search for a person to the next"""

    def __post_init__(self) -> None:
        check_number("features.pose.stride", self.stride, int, 1, 1000)


_HUNYUAN_TEMPLATE = (
    "<|start_header_id|>system<|end_header_id|>\n\nDescribe the video by detailing the following aspects: "
    "1. The main content and theme of the video."
    "2. The color, shape, size, texture, quantity, text, and spatial relationships of the objects."
    "3. Actions, events, behaviors temporal relationships, physical movement changes of the objects."
    "4. background environment, light, style and atmosphere."
    "5. camera angles, movements, and transitions used in the video:<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>"
)

TEXT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "cogvideox": {"padding": "max_length", "max_tokens": 226, "mask": False},
    "flux": {"padding": "max_length", "max_tokens": 512, "mask": False},
    "hunyuanvideo": {
        "padding": "max_length", "max_tokens": 256, "hidden_state": -3, "skip_tokens": 95,
        "template": _HUNYUAN_TEMPLATE,
    },
    "ltx": {"padding": "max_length", "max_tokens": 128, "mask": False},
    "wan": {"padding": "zeros", "max_tokens": 512, "clean": True},
}  # fmt: skip
"""Generator to the values of keys of ``features.text``, with which its pipeline in diffusers 0.42 encodes captions"""

_TEXT_DEFAULTS: Mapping[str, Any] = {
    "max_tokens": None, "padding": "none", "mask": True, "hidden_state": -1, "template": "{}", "skip_tokens": 0,
    "clean": False, "captions": "first",
}  # fmt: skip


@dataclass(frozen=True)
class TextConfig(Section):
    """Embedding of the caption."""

    ends: ClassVar[Mapping[str, tuple[str, ...]]] = {"model": ("tokenizer",), "pooled_model": ("pooled_tokenizer",)}
    model: str = ""
    """Folder of a T5, UMT5, CLIP or Llama text encoder, or its name on the Hugging Face Hub"""
    tokenizer: str | None = None
    """Folder or name of the tokenizer. None means that it is with the model"""
    pooled_model: str | None = None
    """Folder or name of a CLIP text encoder, whose pooled output is stored too. None stores none"""
    pooled_tokenizer: str | None = None
    """Folder or name of the tokenizer of ``pooled_model``. None means that it is with that model"""
    max_tokens: int | None = None
    """Largest number of tokens. None means that of the preset, or else of the tokenizer"""
    dtype: str = "float16"
    """"float16" or "float32" """
    device: str = "auto"
    """Device of the network: "auto", "cpu", "cuda" or "cuda:N". It does not change the fingerprint"""
    preset: str | None = None
    """"cogvideox", "flux", "hunyuanvideo", "ltx" or "wan": generator that gives the value of each key that is None"""
    padding: str | None = None
    """"none"; "zeros" after the embeddings, up to ``max_tokens``; or "max_length", up to which the tokenizer pads, so
    that padding is encoded too. None means "none" without a preset"""
    mask: bool | None = None
    """False if the model attends to the padding as well. None means True without a preset"""
    hidden_state: int | None = None
    """Position in the hidden states of the model, from the end. None means -1, the last, without a preset"""
    template: str | None = None
    """Text around the caption, which takes the place of {}"""
    skip_tokens: int | None = None
    """Number of tokens at the start that are left out, such as those of the template. ``max_tokens`` does not count
    them"""
    clean: bool | None = None
    """True to resolve HTML entities and to make white space single spaces"""
    captions: str | None = None
    """"first" or "all": the captions of an item that are encoded. None means "first" """

    def __post_init__(self) -> None:
        check_model("features.text.model", self.model)
        for name in ("tokenizer", "pooled_model", "pooled_tokenizer"):
            if (place := getattr(self, name)) is not None:
                check_model(f"features.text.{name}", place)
        if self.pooled_tokenizer is not None and self.pooled_model is None:
            raise UsageError(
                "features.text.pooled_tokenizer: got one without a pooled_model, expected both. Name the model too."
            )
        if self.max_tokens is not None:
            check_number("features.text.max_tokens", self.max_tokens, int, 1, 1 << 20)
        check_choice("features.text.dtype", self.dtype, ("float16", "float32"))
        if self.preset is not None:
            check_choice("features.text.preset", self.preset, tuple(TEXT_PRESETS))
        values = self._encoding
        check_choice("features.text.padding", values["padding"], ("none", "zeros", "max_length"))
        check_choice("features.text.mask", values["mask"], (True, False))
        check_number("features.text.hidden_state", values["hidden_state"], int, -256, -1)
        check_number("features.text.skip_tokens", values["skip_tokens"], int, 0, 1 << 16)
        check_choice("features.text.clean", values["clean"], (True, False))
        check_choice("features.text.captions", values["captions"], ("first", "all"))
        if not isinstance(values["template"], str) or values["template"].count("{}") != 1:
            raise UsageError(
                f"features.text.template: got {values['template']!r}, expected a text with {{}} once. Write {{}} where "
                "the caption belongs."
            )
        if values["padding"] != "none" and values["max_tokens"] is None:
            raise UsageError(
                f"features.text.max_tokens: got None, expected a number with padding: {values['padding']}. Set it to "
                "the number of tokens that the generator takes."
            )
        if values["padding"] != "max_length" and not values["mask"]:
            raise UsageError(
                f"features.text.mask: got False, expected True with padding: {values['padding']}, which the model does "
                "not get. Leave it out, or take padding: max_length."
            )

    @property
    def _encoding(self) -> dict[str, Any]:
        """Value of each key of ``_TEXT_DEFAULTS``: as given, or else of the preset, or else the default."""
        given = {name: getattr(self, name) for name in _TEXT_DEFAULTS}
        return {
            **_TEXT_DEFAULTS,
            **TEXT_PRESETS.get(self.preset or "", {}),
            **{name: value for name, value in given.items() if value is not None},
        }

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the extractor. Those of the encoding are left out where they are the defaults."""
        values = self._encoding
        changed = {name: value for name, value in values.items() if value != _TEXT_DEFAULTS[name]}
        own = {name: getattr(self, name) for name in ("model", "tokenizer", "dtype", "device")}
        if self.pooled_model is not None:
            own |= {"pooled_model": self.pooled_model, "pooled_tokenizer": self.pooled_tokenizer}
        return {**own, "max_tokens": None, **changed}


@dataclass(frozen=True)
class LatentsConfig(Section):
    """Latents of a VAE."""

    model: str = ""
    """Folder of a VAE of diffusers, such as AutoencoderKL or AutoencoderKLWan, or its name on the Hub"""
    clip_frames: int = 81
    """[frames] Length of the clips that a VAE which compresses time gets: 1 plus a multiple of its compression"""
    fit: str = "pad"
    """Choice for pictures and clips of a size that the VAE cannot take: "pad" or "refuse" """
    dtype: str = "float16"
    """"float16" or "float32" """
    batch_size: int = 4
    """Largest number of pictures or clips that are encoded at once. It does not change the fingerprint"""
    device: str = "auto"
    """Device of the network: "auto", "cpu", "cuda" or "cuda:N". It does not change the fingerprint"""
    moments: bool = False
    """True to store the logarithm of the variance too, with which readers draw from the posterior"""
    first_frame: bool = False
    """True to store the latents of the first frame of each clip too, as trainers of image-to-video take them"""

    def __post_init__(self) -> None:
        check_choice("features.latents.moments", self.moments, (True, False))
        check_choice("features.latents.first_frame", self.first_frame, (True, False))
        check_model("features.latents.model", self.model)
        check_number("features.latents.clip_frames", self.clip_frames, int, 1, 4097)
        check_choice("features.latents.fit", self.fit, ("pad", "refuse"))
        check_choice("features.latents.dtype", self.dtype, ("float16", "float32"))


@dataclass(frozen=True)
class EmbedConfig(Section):
    """Embedding of each kept frame."""

    model: str = ""
    """Folder of a CLIP, SigLIP or DINOv2 model, or its name on the Hugging Face Hub"""
    output: str = "pooled"
    """"pooled", a vector for the frame; "projected", that of CLIP in the space that it shares with captions; or
    "tokens", the last hidden states"""
    dtype: str = "float16"
    """"float16" or "float32" """
    batch_size: int = 32
    """Largest number of frames that the network gets at once. It does not change the fingerprint"""
    device: str = "auto"
    """Device of the network: "auto", "cpu", "cuda" or "cuda:N". It does not change the fingerprint"""

    def __post_init__(self) -> None:
        check_model("features.embed.model", self.model)
        check_choice("features.embed.output", self.output, ("pooled", "projected", "tokens"))
        check_choice("features.embed.dtype", self.dtype, ("float16", "float32"))


@dataclass(frozen=True)
class SeriesConfig(Section):
    """Columns of the table that an item names in the column ``series`` of the index, such as states and actions."""

    columns: tuple[str, ...] = ("observation.state", "action")
    """Columns of numbers, or of lists of numbers of one shape"""
    time: str = "timestamp"
    """Column of the times [seconds from the item's first frame]"""
    max_gap_seconds: float | None = None
    """[seconds] Largest distance of a frame from the nearest row. None means 1.5 times the median distance of rows"""

    def __post_init__(self) -> None:
        names: Any = self.columns
        if not isinstance(names, list | tuple) or not names or not all(map(_COLUMN.fullmatch, map(str, names))):
            raise UsageError(
                f"features.series.columns: got {names!r}, expected a list of columns, named with letters, digits, _, - "
                "and dots. Rename others in the table."
            )
        object.__setattr__(self, "columns", tuple(dict.fromkeys(map(str, names))))
        if self.max_gap_seconds is not None:
            check_number("features.series.max_gap_seconds", self.max_gap_seconds, (int, float), 1e-6, 1e9)


@dataclass(frozen=True)
class PluginConfig(Section):
    """A feature made by a third-party extractor."""

    name: str
    extractor: str
    """"package.module:Class\""""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the class, as plain JSON data"""

    def __post_init__(self) -> None:
        if not isinstance(self.extractor, str) or not _PLUGIN.fullmatch(self.extractor):
            raise UsageError(f"features.{self.name}.extractor: got {self.extractor!r}, expected 'package.module:Class'")
        _check_plain(f"features.{self.name}", self.params)

    @classmethod
    def lasting(cls, before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that last: none with another class."""
        return {} if changes.get("extractor", before.get("extractor")) != before.get("extractor") else dict(before)


def _check_plain(name: str, params: Any) -> None:
    try:
        json.dumps(params, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: got parameters other than plain data: {error}") from None
    if not isinstance(params, Mapping):
        raise UsageError(f"{name}: got {params!r}, expected a mapping of keyword arguments")


FEATURE_SECTIONS: Mapping[str, type[Any]] = {
    "flow": FlowConfig,
    "motion": MotionConfig,
    "mel": MelConfig,
    "waveform": WaveformConfig,
    "librosa": LibrosaConfig,
    "pose": PoseConfig,
    "text": TextConfig,
    "latents": LatentsConfig,
    "embed": EmbedConfig,
    "series": SeriesConfig,
}
"""Class of the settings of each built-in feature but frames"""
