"""The request for one sample, its random numbers, and the interface of the samplers that choose its frames."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from chordcache.arguments import check_at_least
from chordcache.read.video import Video

EPOCHS = 2**32
"""Upper bound of epochs. ``(epoch + n * EPOCHS, index)`` is the n-th further draw of a sample in an epoch."""


class RandomStream(enum.IntEnum):
    """Users of a sample's random numbers. Each has a separate stream, so that a new one does not change the others."""

    SAMPLER = 0
    CROP = 1
    TIME_WARP = 2
    FRAME_DROP = 3
    TEMPORAL_CROP = 4
    ORDER = 5
    """Stream for the order of all samples of an epoch"""
    AUGMENT = 6
    """Stream for a clip's policy in ``BatchAugment``, with its own seed"""
    MIX = 7
    """Stream for MixUp and CutMix of the batch that begins with the sample"""
    CAPTION = 8
    """Stream for the caption of an item that has several"""
    LATENTS = 9
    """Stream for latents that are drawn from their posterior"""


class _Zeros(np.random.bit_generator.ISeedSequence):
    """A seed for generators whose state is set. Without one, numpy reads the operating system's, which takes longer."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Return as many zeros."""
        return np.zeros(n_words, dtype)


_NO_ENTROPY: Any = _Zeros()
_START: Any = np.random.Philox(_NO_ENTROPY).state
"""State of a generator that has drawn nothing"""


@dataclass(frozen=True)
class ClipRequest:
    """A dataset's request to a clip sampler for one sample."""

    seed: int = 0
    """Seed of the dataset"""
    epoch: int = 0
    index: int = 0
    """Index of the sample in its dataset"""
    clip: int = 0
    """Number of the clip of this video, in [0, num_clips)"""
    num_clips: int = 1
    """Number of clips that the dataset takes from each video"""
    repeat: int = 0
    """Number of times that a sampler with weights drew the sample before in this epoch"""

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed, epoch=self.epoch, index=self.index, clip=self.clip, repeat=self.repeat)
        check_at_least(self.clip + 1, num_clips=self.num_clips)

    def generator(self, stream: RandomStream = RandomStream.SAMPLER) -> np.random.Generator:
        """Return the random generator of this sample. It gives the same numbers in any process, worker and order.

        Philox is counter based. (seed, epoch) are the key. Index, stream and repeat are the high words of the counter.
        No two samples therefore share numbers, without any hashing or drawing.
        """
        philox = np.random.Philox(_NO_ENTROPY)
        place = {"key": (self.seed, self.epoch), "counter": (0, self.repeat, stream, self.index)}
        philox.state = _START | {"state": place}
        return np.random.Generator(philox)


class ClipSampler(Protocol):
    """The interface of a clip sampler. Any picklable object with this method can be used.

    A second method, ``clip_shape(num_frames, epoch)``, is optional. See the function of this name.
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample.

        The result may depend on the arguments only, not on state or global random numbers.

        Returns
        -------
        np.ndarray [shape=(T,), dtype=int64, frame numbers in [0, video.num_frames)]
            The frames in the order of the sample. Repeats are allowed.
        """
        ...


ClipShape: TypeAlias = tuple[int | np.ndarray]
"""Shape (T,) of the frame numbers of samples. T is one number, or one for each sample"""


def clip_shape(sampler: ClipSampler, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
    """Return the shape of ``sampler.frame_numbers`` for many videos at once, or None if only that method knows it.

    The sampler's own method ``clip_shape(num_frames, epoch)`` returns it. A class that overrides ``frame_numbers``
    alone does not inherit that method. ``num_frames`` [shape=(n,), dtype=int64] is that of the video of each sample.
    """
    for kind in type(sampler).__mro__:
        if "clip_shape" in vars(kind):
            shape: ClipShape | None = sampler.clip_shape(num_frames, epoch)  # type: ignore[attr-defined]
            return shape
        if "frame_numbers" in vars(kind):
            break
    return None
