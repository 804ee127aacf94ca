"""The two classes of each built-in feature, and the read side of any feature."""

from __future__ import annotations

from functools import cache
from pkgutil import resolve_name
from typing import NamedTuple

from chordcache.features.read_side import ReadSide


class BuiltIn(NamedTuple):
    """The two classes of a built-in feature, "module:Class"."""

    extractor: str
    read_side: str


BUILT_IN = {
    "frames": BuiltIn("chordcache.features.frames:FramesExtractor", "chordcache.features.frames:FramesReadSide"),
    "flow": BuiltIn("chordcache.features.flow:FlowExtractor", "chordcache.features.flow:FlowReadSide"),
    "motion": BuiltIn("chordcache.features.motion:MotionExtractor", "chordcache.features.motion:MotionReadSide"),
    "mel": BuiltIn("chordcache.features.mel:MelExtractor", "chordcache.features.mel:MelReadSide"),
    "waveform": BuiltIn(
        "chordcache.features.waveform:WaveformExtractor", "chordcache.features.waveform:WaveformReadSide"
    ),
    "librosa": BuiltIn("chordcache.features.librosa:LibrosaExtractor", "chordcache.features.librosa:LibrosaReadSide"),
    "text": BuiltIn(
        "chordcache.features.networks.text:TextExtractor", "chordcache.features.networks.text:TextReadSide"
    ),
    "latents": BuiltIn(
        "chordcache.features.networks.latents:LatentsExtractor",
        "chordcache.features.networks.latent_rows:LatentsReadSide",
    ),
    "embed": BuiltIn("chordcache.features.networks.embed:EmbedExtractor", "chordcache.features.read_side:ReadSide"),
    "series": BuiltIn("chordcache.features.series:SeriesExtractor", "chordcache.features.series:SeriesReadSide"),
    "pose": BuiltIn("chordcache.features.pose:PoseExtractor", "chordcache.features.pose:PoseReadSide"),
}
"""The built-in features. Each also has a section in ``config``. Importing their modules loads no decoder."""


@cache
def read_side(name: str) -> ReadSide:
    """Return the read side of a feature. That of a plug-in's feature is the base class."""
    if name not in BUILT_IN:
        return ReadSide(name)
    side: ReadSide = resolve_name(BUILT_IN[name].read_side)(name)
    return side


def read_sides() -> dict[str, ReadSide]:
    """Return the read sides of all built-in features, by feature."""
    return {name: read_side(name) for name in BUILT_IN}
