"""Samplers by their name in a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from chordcache.read.named import make_named
from chordcache.read.sampling.clip_request import ClipSampler
from chordcache.read.sampling.clip_samplers import (
    DenseClips,
    KeyframeSampler,
    RandomClipSampler,
    RegularClipSampler,
    RegularTimestampClips,
    SamplerSchedule,
    UniformFrameSampler,
)
from chordcache.read.sampling.content_samplers import AdaptiveSampler, AudioPeakSampler
from chordcache.read.sampling.latent_clips import LatentClipSampler
from chordcache.read.sampling.time_transforms import FrameDrop, TemporalCrop, TimeWarp

SAMPLERS: Mapping[str, type] = {
    "regular": RegularClipSampler,
    "random": RandomClipSampler,
    "uniform_frames": UniformFrameSampler,
    "keyframe": KeyframeSampler,
    "audio_peak": AudioPeakSampler,
    "adaptive": AdaptiveSampler,
    "dense": DenseClips,
    "regular_timestamps": RegularTimestampClips,
    "latent_clips": LatentClipSampler,
}
"""Sampler by its name in a config. "schedule" is not included, since it is made of other samplers."""

TIME_TRANSFORMS: Mapping[str, type] = {
    "time_warp": TimeWarp,
    "frame_drop": FrameDrop,
    "temporal_crop": TemporalCrop,
}
"""Sampler around another sampler, by its name in a config"""


def make_sampler(config: Mapping[str, Any], section: str = "clip_sampler") -> ClipSampler:
    """Make the sampler that a config describes.

    Parameters
    ----------
    config : mapping of str to Any
        ``name``, a key of ``SAMPLERS``, and that sampler's arguments. Or the name "schedule" and ``stages``, which maps
        the first epoch of each stage to such a config.
    section : str
        Place of the config, for messages.

    Returns
    -------
    ClipSampler
        The sampler.

    Raises
    ------
    ConfigError
        If the sampler or one of its arguments does not exist, or an argument is missing.
    UsageError
        If an argument's value is wrong.

    Examples
    --------
    >>> make_sampler({"name": "random", "num_frames": 8})
    RandomClipSampler(num_frames=8, stride=4, pad='repeat', fps=None)
    >>> later = {"name": "adaptive", "temperature": 0.5, "fps": 8}
    >>> make_sampler({"name": "schedule", "stages": {0: {"name": "random"}, 10: later}}).at(10)
    AdaptiveSampler(num_frames=16, stride=None, pad='repeat', fps=8, temperature=0.5)
    """

    def schedule(stages: Mapping[int, Mapping[str, Any]] = MappingProxyType({})) -> SamplerSchedule:
        return SamplerSchedule({epoch: make_sampler(stage, section) for epoch, stage in stages.items()})

    sampler: ClipSampler = make_named(section, {**SAMPLERS, "schedule": schedule}, config)
    return sampler


def transformed(sampler: ClipSampler, configs: Sequence[Mapping[str, Any]], section: str) -> ClipSampler:
    """Return a sampler with time transforms around it, the first of which is the innermost.

    Parameters
    ----------
    sampler : ClipSampler
        Sampler of the clips.
    configs : sequence of mappings of str to Any
        For each transform ``name``, a key of ``TIME_TRANSFORMS``, and its arguments without ``sampler``.
    section : str
        Place of the configs, for messages.

    Returns
    -------
    ClipSampler
        The outermost transform. Without transforms, ``sampler`` itself.

    Raises
    ------
    ConfigError, UsageError
        As in ``make_sampler``.
    """
    for config in configs:
        sampler = make_named(section, TIME_TRANSFORMS, config, sampler=sampler)
    return sampler
