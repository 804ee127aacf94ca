"""Facts that need decoding: how much the picture moves and how loud the sound is, second by second."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.reformatter import Interpolation, VideoReformatter

from chordcache.decode import DecodedFrame, plane_array, side_data
from chordcache.records import ContentFacts

MOTION_VECTOR_CODECS = frozenset(
    "h264 mpeg1video mpeg2video mpeg4 h263 h263p wmv1 wmv2 flv1 msmpeg4v1 msmpeg4v2 msmpeg4v3".split()
)
"""Codecs whose motion vectors libavcodec exports."""

_NUM_BINS = 16
_LUMA_SIZE = (160, 90)
"""[pixels] of the pictures whose differences are taken where there are no motion vectors."""

_WINDOWS_PER_SECOND = 100
_MAX_SECONDS = 1_000_000
"""A timestamp further than this from the first frame is a lie, and would cost memory."""


class ContentMeter:
    """Gathers ``ContentFacts`` from frames and sound as they are decoded; a second of video costs 2 kB of memory."""

    def __init__(self, codec: str) -> None:
        self._source = "codec" if codec in MOTION_VECTOR_CODECS else "luma"
        self._start_seconds: float | None = None
        self._motion: list[list[float]] = []
        """Sum and number of frames, per second"""
        self._histogram = np.zeros(_NUM_BINS, np.int64)
        self._scaler = VideoReformatter()
        self._last_luma: np.ndarray | None = None
        self._resampler: av.AudioResampler | None = None
        self._windows = np.zeros((0, 2))
        """Sum of squares and number of samples, per 10 ms"""

    def add_frame(self, frame: DecodedFrame) -> None:
        """Take the next frame, in presentation order."""
        if self._start_seconds is None:
            self._start_seconds = frame.pts_seconds
        motion = self._motion_of(frame.picture)
        second = int(frame.pts_seconds - self._start_seconds)
        if motion is None or not 0 <= second < _MAX_SECONDS:
            return
        while len(self._motion) <= second:
            self._motion.append([0.0, 0])
        self._motion[second][0] += motion
        self._motion[second][1] += 1
        self._histogram[0 if motion < 0.5 else min(_NUM_BINS - 1, int(np.log2(motion)) + 2 if motion >= 1 else 1)] += 1

    def _motion_of(self, picture: av.VideoFrame) -> float | None:
        """None where a frame says nothing: intra pictures, and the first."""
        if self._source == "codec":
            try:
                vectors = side_data(picture, SideDataType.MOTION_VECTORS)
            except ValueError:
                return None
            if vectors is None:
                return None
            v = vectors.to_ndarray()
            lengths = np.hypot(v["motion_x"], v["motion_y"]) / np.maximum(v["motion_scale"], 1)
            return float(np.average(lengths, weights=v["w"].astype(float) * v["h"]))
        scaled = self._scaler.reformat(picture, *_LUMA_SIZE, "gray", interpolation=Interpolation.AREA, threads=1)
        luma = plane_array(scaled.planes[0]).astype(np.int16)
        last, self._last_luma = self._last_luma, luma
        return None if last is None else float(np.abs(luma - last).mean())

    def add_sound(self, sound: av.AudioFrame) -> None:
        """Take the next piece of sound; after all frames, so that the clock's zero is known."""
        if self._start_seconds is None or sound.pts is None:
            return
        if self._resampler is None:
            self._resampler = av.AudioResampler(format="flt", layout="mono")
        for piece in self._resampler.resample(sound):
            start = float((piece.pts or 0) * (piece.time_base or Fraction(1, piece.sample_rate))) - self._start_seconds
            squares = np.nan_to_num(np.square(piece.to_ndarray().ravel().astype(float)), nan=0.0, posinf=0.0)
            window = np.floor((start + np.arange(len(squares)) / piece.sample_rate) * _WINDOWS_PER_SECOND).astype(int)
            inside = (window >= 0) & (window < _MAX_SECONDS * _WINDOWS_PER_SECOND)
            if not inside.any():
                continue
            window, squares = window[inside], squares[inside]
            missing = int(window.max()) + 1 - len(self._windows)
            if missing > 0:
                self._windows = np.concatenate([self._windows, np.zeros((max(missing, len(self._windows)), 2))])
            self._windows[:, 0] += np.bincount(window, squares, len(self._windows))
            self._windows[:, 1] += np.bincount(window, minlength=len(self._windows))

    def facts(self) -> ContentFacts:
        """What was gathered."""
        energies, peaks = self._sound_facts()
        return ContentFacts(
            motion_source=self._source,
            motion_per_second=tuple(round(total / max(count, 1), 4) for total, count in self._motion),
            motion_histogram=tuple(self._histogram.tolist()),
            audio_energy_per_second=energies,
            audio_peaks_seconds=peaks,
        )

    def _sound_facts(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        used = np.flatnonzero(self._windows[:, 1])
        if not len(used):
            return (), ()
        num_seconds = int(used[-1]) // _WINDOWS_PER_SECOND + 1
        windows = np.zeros((num_seconds * _WINDOWS_PER_SECOND, 2))
        kept = self._windows[: len(windows)]
        windows[: len(kept)] = kept
        seconds = windows.reshape(num_seconds, _WINDOWS_PER_SECOND, 2)
        energies = np.sqrt(seconds[..., 0].sum(1) / np.maximum(seconds[..., 1].sum(1), 1))
        loudness = np.sqrt(seconds[..., 0] / np.maximum(seconds[..., 1], 1))
        threshold = 2 * np.median(energies)
        peaks = [
            second + float(np.argmax(loudness[second])) / _WINDOWS_PER_SECOND
            for second in range(num_seconds)
            if loudness[second].max() > threshold
        ]
        return tuple(np.round(energies, 6).tolist()), tuple(round(peak, 2) for peak in peaks)
