"""Samplers by their name in a config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from chordcache.errors import ConfigError
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

SAMPLERS: Mapping[str, type] = {
    "regular": RegularClipSampler,
    "random": RandomClipSampler,
    "uniform_frames": UniformFrameSampler,
    "keyframe": KeyframeSampler,
    "audio_peak": AudioPeakSampler,
    "adaptive": AdaptiveSampler,
    "dense": DenseClips,
    "regular_timestamps": RegularTimestampClips,
}
"""Sampler by its name in a config. "schedule" is not included, since it is made of other samplers."""


def make_sampler(config: Mapping[str, Any]) -> ClipSampler:
    """Make the sampler that a config describes.

    Parameters
    ----------
    config : mapping of str to Any
        ``name``, a key of ``SAMPLERS``, and that sampler's arguments. Or the name "schedule" and ``stages``, which maps
        the first epoch of each stage to such a config.

    Returns
    -------
    ClipSampler
        The sampler.

    Raises
    ------
    ConfigError
        If the sampler or one of its arguments does not exist.
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
    arguments = dict(config)
    name = arguments.pop("name", None)
    if name == "schedule":
        _check_arguments(name, arguments, ["stages"])
        return SamplerSchedule({epoch: make_sampler(stage) for epoch, stage in arguments.get("stages", {}).items()})
    if name not in SAMPLERS:
        raise ConfigError(f"clip_sampler: got the name {name!r}, expected one of {', '.join((*SAMPLERS, 'schedule'))}")
    kind = SAMPLERS[name]
    _check_arguments(name, arguments, [field.name for field in fields(kind)])
    sampler: ClipSampler = kind(**arguments)
    return sampler


def _check_arguments(name: str, arguments: Mapping[str, Any], valid: list[str]) -> None:
    unknown = [argument for argument in arguments if argument not in valid]
    if unknown:
        raise ConfigError(f"clip_sampler '{name}': got '{unknown[0]}', expected one of {', '.join(valid)}")
