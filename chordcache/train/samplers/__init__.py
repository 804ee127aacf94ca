"""Samplers of clips by short names, for example ``cc.samplers.uniform(16)``. A config has the same names.

Each name is the class, so that ``cc.samplers.random`` and ``cc.RandomClipSampler`` are the same.
"""

from __future__ import annotations

from chordcache.train.samplers.clip_samplers import KeyframeSampler as keyframe
from chordcache.train.samplers.clip_samplers import RandomClipSampler as random
from chordcache.train.samplers.clip_samplers import RegularClipSampler as regular
from chordcache.train.samplers.clip_samplers import SamplerSchedule as schedule
from chordcache.train.samplers.clip_samplers import UniformFrameSampler as uniform
from chordcache.train.samplers.content_samplers import AdaptiveSampler as adaptive
from chordcache.train.samplers.content_samplers import AudioPeakSampler as audio_peak
from chordcache.train.samplers.content_samplers import LatentClipSampler as latent_clips

__all__ = [
    "adaptive",
    "audio_peak",
    "keyframe",
    "latent_clips",
    "random",
    "regular",
    "schedule",
    "uniform",
]


def __dir__() -> list[str]:
    return __all__
