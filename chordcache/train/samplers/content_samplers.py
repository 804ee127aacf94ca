"""Samplers that choose clips by what is cached of them: peaks of the sound, motion, and clips that a VAE encoded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace

import numpy as np

from chordcache.arguments import check_at_least, check_positive, check_range
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.storage.row_clock import FrameGroups
from chordcache.train.samplers.clip_request import ClipRequest, ClipShape
from chordcache.train.samplers.even_clips import EvenClips, EvenClipSampler


@dataclass(frozen=True)
class AudioPeakSampler(EvenClipSampler):
    """Sampler of clips around the peaks of the sound. The middle frame of a clip is the one nearest to a peak.

    The cache holds the peaks, see ``ContentFacts``. Every peak is equally likely. Near the ends of the video, clips are
    moved inside. Peaks after the last frame are ignored. For a video without these facts or without peaks, clips are
    drawn as ``RandomClipSampler`` does. Missing facts also give a warning.

    Arguments and errors are those of ``RegularClipSampler``.
    """

    def _choose_clip(self, clips: EvenClips, video: Video, request: ClipRequest) -> np.ndarray:
        random = request.generator()
        if video.content is None:
            _warn_of_missing_facts("AudioPeakSampler: the sound of a video is not known")
            return clips.random_clip(random)
        peaks = [peak for peak in video.content.audio_peaks_seconds if peak < video.duration_seconds]
        if not peaks:
            return clips.random_clip(random)
        # Peaks are on the clock of the video, also where that is set back
        distances = np.abs(video.pts_seconds - video.pts_seconds[0] - peaks[random.integers(len(peaks))])
        return clips.clip_around(int(np.argmin(distances)))


@dataclass(frozen=True)
class AdaptiveSampler(EvenClipSampler):
    """Sampler that prefers clips with much motion. A start frame is drawn in proportion to the motion of its clip.

    The cache holds the motion of each second, see ``ContentFacts``. For a video without these facts or without motion,
    clips are drawn as ``RandomClipSampler`` does. Missing facts also give a warning.

    Parameters
    ----------
    num_frames, stride, pad, fps, within_shots
        As in ``RegularClipSampler``.
    temperature : float
        A clip's weight is its mean motion to the power of ``1 / temperature``. Near 0, the clip with the most motion is
        taken every time. At 1, a clip with twice the motion is taken twice as often. At large values, all clips are
        equally likely.
    lengths : (int, int), optional
        Least and greatest number of frames of a clip, which then follows the motion. ``num_frames`` is the length of a
        clip with the mean motion of its video. With twice that motion it has half as many frames. The motion is that of
        ``num_frames`` frames from the start. Near the end of the video, a longer clip is moved inside. ``collate`` pads
        such clips to the longest of a batch.
    """

    temperature: float = 1.0
    lengths: tuple[int, int] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(temperature=self.temperature)
        if self.lengths is not None:
            check_range("lengths", self.lengths)
            object.__setattr__(self, "lengths", tuple(self.lengths))  # a list of a config
            check_at_least(1, lengths=self.lengths[0])
            check_at_least(self.lengths[0], lengths=self.lengths[1])

    def _choose_clip(self, clips: EvenClips, video: Video, request: ClipRequest) -> np.ndarray:
        random = request.generator()
        motion = _motion_of_clips(video, clips.stops())
        if motion is None or not motion.max() > 0:
            return clips.random_clip(random)
        weights = (motion / motion.max()) ** (1 / self.temperature)
        up_to = np.cumsum(weights)
        start = min(int(np.searchsorted(up_to, random.random() * up_to[-1], side="right")), len(weights) - 1)
        if self.lengths is None:
            return clips.clip_from(start)
        least, most = self.lengths
        length = round(self.num_frames * min(float(motion.mean() / max(motion[start], 1e-9)), most))
        sampler = replace(self, num_frames=min(max(length, least), most), lengths=None)
        return EvenClips(video, sampler).clip_from(start)

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> ClipShape | None:
        """Return the length of all clips, or None if it follows the motion. See ``ClipSampler``."""
        return None if self.lengths else super().clip_shape(num_frames, epoch)


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


def _motion_of_clips(video: Video, stops: np.ndarray) -> np.ndarray | None:
    """Return the mean motion from frame 0, 1, 2 ... to each stop [shape=stops.shape]. None if unknown."""
    if video.content is None or not video.content.motion_per_second:
        _warn_of_missing_facts("AdaptiveSampler: the motion of a video is not known")
        return None
    per_second = np.array(video.content.motion_per_second)
    seconds = (video.pts_seconds - video.pts_seconds[0]).astype(np.int64)
    up_to = np.concatenate([[0.0], np.cumsum(per_second[np.clip(seconds, 0, len(per_second) - 1)])])
    starts = np.arange(len(stops))
    means: np.ndarray = (up_to[stops] - up_to[starts]) / (stops - starts)
    return means


def _warn_of_missing_facts(what: str) -> None:
    warnings.warn(
        f"{what}, its clips are drawn evenly; scan with --level content and build again to add it", stacklevel=2
    )
