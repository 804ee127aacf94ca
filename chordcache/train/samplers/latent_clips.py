"""The sampler of clips as a VAE encoded them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.storage.row_clock import FrameGroups
from chordcache.train.samplers.clip_request import ClipRequest


@dataclass(frozen=True)
class LatentClipSampler:
    """Sampler that draws one of the clips that a VAE encoded, for training on their latents.

    The first latents of such a clip cover its first frame alone, as a generator begins. The first latents of a clip
    that begins elsewhere also cover frames before it. A shorter rest at the end of a video is left out, unless it is
    the whole video.

    Raises
    ------
    UsageError
        From ``frame_numbers``, if the latents have a row for each frame, and so are not of clips, or if the video is a
        segment of a file that is cached whole.
    NotFoundError
        From ``frame_numbers``, if the video does not have latents.

    Examples
    --------
    A video of 200 frames, encoded as clips of 81:

    >>> from types import SimpleNamespace
    >>> facts = {"frames_per_row": 4, "frames_in_first_row": 1, "frames_per_clip": 81}
    >>> video = SimpleNamespace(key="a", num_frames=200, first_row=0, feature=lambda name: SimpleNamespace(facts=facts))
    >>> clips = [LatentClipSampler().frame_numbers(video, ClipRequest(index=index)) for index in range(20)]
    >>> sorted({(int(numbers[0]), len(numbers)) for numbers in clips})
    [(0, 81), (81, 81)]
    """

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        """Choose the frames of one sample. See ``ClipSampler``."""
        groups = FrameGroups.of(video.feature("latents").facts)
        if groups is None:
            raise UsageError(
                f"clip_sampler: got LatentClipSampler for latents of video '{video.key}', which have a row for "
                "each frame, expected latents of clips. Take a RandomClipSampler."
            )
        if video.first_row:
            raise UsageError(
                f"clip_sampler: got LatentClipSampler for '{video.key}', a segment of a file that is cached whole, "
                "expected latents that begin with the segment. Build the segments, or take a RandomClipSampler."
            )
        length = min(groups.num_in_clip or video.num_frames, video.num_frames)
        start = int(request.generator().integers(video.num_frames // length)) * length
        return np.arange(start, start + length, dtype=np.int64)
