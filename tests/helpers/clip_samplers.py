"""Samplers of clips that a user might write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chordcache.read.video import Video
from chordcache.train.samplers.clip_request import ClipRequest


@dataclass(frozen=True)
class Numbers:
    """The same numbers for each video."""

    numbers: tuple[int, ...]

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        return np.array(self.numbers)


class WholeVideos:
    """All frames of each video."""

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        return np.arange(video.num_frames)


class ShapedWholeVideos(WholeVideos):
    """All frames of each video, whose number needs no call for each sample."""

    def frame_numbers(self, video: Video, request: ClipRequest) -> np.ndarray:
        return super().frame_numbers(video, request)

    def clip_shape(self, num_frames: np.ndarray, epoch: int) -> tuple[np.ndarray]:
        return (num_frames,)
