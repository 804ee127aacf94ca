"""Samplers by their name in a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from chordcache.errors import UsageError
from chordcache.train import samplers
from chordcache.train.instantiate import make_named
from chordcache.train.samplers.clip_request import ClipSampler
from chordcache.train.samplers.clip_samplers import SamplerSchedule
from chordcache.train.samplers.time_transforms import FrameDrop, TemporalCrop, TimeWarp

SAMPLERS: Mapping[str, type] = {name: getattr(samplers, name) for name in samplers.__all__ if name != "schedule"}
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


def checked_sampler(sampler: object) -> ClipSampler:
    """Return the sampler that an argument means: an object, a name, a config for ``make_sampler``, or a class.

    Raises
    ------
    ConfigError, UsageError
        If it is none of them, or the class needs arguments.

    Examples
    --------
    >>> checked_sampler("uniform")
    UniformFrameSampler(num_frames=16, position='ends')
    """
    if isinstance(sampler, str):
        sampler = {"name": sampler}
    if isinstance(sampler, Mapping):
        return make_sampler(sampler)
    if isinstance(sampler, type):
        kind = sampler
        try:
            sampler = kind()
        except TypeError as error:
            raise UsageError(f"clip_sampler: got the class {kind.__name__}, expected an object ({error})") from None
    if not callable(getattr(sampler, "frame_numbers", None)):
        raise UsageError(
            f"clip_sampler: got {sampler!r}, expected an object with frame_numbers, such as a "
            f"RandomClipSampler(), or one of the names {', '.join(SAMPLERS)}"
        )
    return cast(ClipSampler, sampler)
