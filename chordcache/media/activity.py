"""Facts that need decoding: how much the picture moves and how loud the sound is, second by second."""

from __future__ import annotations

import math
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.reformatter import Interpolation, VideoReformatter

from chordcache.media.decoding import DecodedFrame
from chordcache.media.picture_data import plane_array, side_data
from chordcache.records import ContentFacts

MOTION_VECTOR_CODECS = frozenset(
    "h264 mpeg1video mpeg2video mpeg4 h263 h263p wmv1 wmv2 flv1 msmpeg4v1 msmpeg4v2 msmpeg4v3".split()
)
"""Codecs whose motion vectors libavcodec exports."""

_NUM_BINS = 16
_LUMA_SIZE = (160, 90)
"""Columns and rows of the points whose differences are taken where there are no motion vectors. On real clips their
mean is within 5 % of that over all pixels. swscale picks them out of a 720p picture in 0.02 ms; averages take 0.15."""

_ENOUGH_VECTORS = 1_000
"""Of a picture with more only every third, fifth ... is looked at: an odd step, since a block's two vectors, or an
odd and an even block, need not be alike. It moves the mean of a picture by 3 %, that of a second by less."""

_WINDOWS_PER_SECOND = 100
_MAX_SECONDS = 86_400
"""A day. What is further from the first frame, or the first sound, is not counted: most likely its timestamp is
wrong, and would cost memory."""

_GROUP_SAMPLES = 1 << 14
"""Sound is measured about so many samples at a time: numpy costs more per call than per sample."""

_ENOUGH_HERTZ = 8_000
"""[Hz] Of the samples measured, where there are more: it is how loud they are, not how they sound."""

_MAX_JITTER_SECONDS = 0.01
"""[seconds] that a timestamp may be off before the sound is taken to go on elsewhere: containers round them."""

_SAMPLE_RATES = range(1_000, 1_000_001)
"""[Hz] of sound that is measured; a window must not be empty."""

_FULL_SCALE = {"u8": 2.0**7, "s16": 2.0**15, "s32": 2.0**31, "flt": 1.0, "dbl": 1.0}
"""Sample format, packed or planar, to what is 1; numpy has no array of the others from PyAV."""

_MAX_SQUARE = 1e18
"""Float samples may be anything: what is larger, or no number, counts as silence."""


MOTION_VECTOR = np.dtype(
    {
        "names": ["source", "size", "position", "motion", "motion_scale"],
        "formats": ["<i4", "(2,)u1", "(2,)<i2", "(2,)<i4", "<u2"],
        "offsets": [0, 4, 10, 24, 32],
        "itemsize": 40,
    }
)
"""AVMotionVector of libavutil/motion_vector.h, without what nobody asks for. Pairs are (x, y): ``size`` is (w, h),
``position`` is (dst_x, dst_y), the centre. ``motion_scale`` is the same for all vectors of a picture."""


def motion_vectors(picture: av.VideoFrame) -> np.ndarray | None:
    """The motion vectors that libavcodec exported with a picture.

    Returns
    -------
    np.ndarray [shape=(n,), n >= 1, dtype=MOTION_VECTOR] or None
        None where there are none, as with intra pictures, or where PyAV cannot list them.
    """
    try:
        vectors = side_data(picture, SideDataType.MOTION_VECTORS)
    except ValueError:
        return None
    if vectors is None or not len(vectors):
        return None
    return np.frombuffer(vectors, MOTION_VECTOR)


class ContentMeter:
    """Gathers ``ContentFacts`` from frames and sound as they are decoded, in whatever order the two come.

    A second of video costs 1 kB of memory, up to a day.

    Parameters
    ----------
    codec : str
        libavcodec's canonical name. If it is one of ``MOTION_VECTOR_CODECS``, the pictures must come with theirs.
    """

    def __init__(self, codec: str) -> None:
        self._source = "codec" if codec in MOTION_VECTOR_CODECS else "luma"
        self._start_seconds: float | None = None
        self._motion: dict[int, list[float]] = {}
        """Second: sum and number of frames"""
        self._histogram = np.zeros(_NUM_BINS, np.int64)
        self._luma = _LumaMeter()
        self._sound = _SoundMeter()

    def add_frame(self, frame: DecodedFrame) -> None:
        """Take the next frame, in presentation order."""
        if self._start_seconds is None:
            self._start_seconds = frame.pts_seconds
        motion = _mean_length(frame.picture) if self._source == "codec" else self._luma.change(frame.picture)
        second = math.floor(frame.pts_seconds - self._start_seconds)
        if motion is None or not 0 <= second < _MAX_SECONDS:
            return
        total = self._motion.setdefault(second, [0.0, 0])
        total[0] += motion
        total[1] += 1
        self._histogram[0 if motion < 0.5 else min(_NUM_BINS - 1, int(math.log2(motion) + 1) + 1)] += 1

    def add_sound(self, sound: av.AudioFrame) -> None:
        """Take the next piece of sound."""
        self._sound.add(sound)

    def facts(self) -> ContentFacts:
        """What was gathered."""
        windows = self._sound.windows(self._start_seconds)
        energies, peaks = _energies_and_peaks(windows) if len(windows) else ((), ())
        return ContentFacts(
            motion_source=self._source,
            motion_per_second=self._motion_per_second(),
            motion_histogram=tuple(self._histogram.tolist()),
            audio_energy_per_second=energies,
            audio_peaks_seconds=peaks,
        )

    def _motion_per_second(self) -> tuple[float, ...]:
        seconds = range(max(self._motion, default=-1) + 1)
        totals = (self._motion.get(second, (0.0, 1)) for second in seconds)
        return tuple(round(total / count, 4) for total, count in totals)


def _mean_length(picture: av.VideoFrame) -> float | None:
    """Of the motion vectors, weighted by area [pixels]; None where a picture has none."""
    vectors = motion_vectors(picture)
    if vectors is None:
        return None
    vectors = vectors[:: 1 + 2 * (len(vectors) // (2 * _ENOUGH_VECTORS))]
    widths, heights = vectors["size"].T.astype(np.float32, order="C")
    x, y = vectors["motion"].T.astype(np.float32, order="C")
    areas = widths * heights
    lengths = np.sqrt(x * x + y * y)
    return float(np.vdot(lengths, areas) / areas.sum() / vectors["motion_scale"][0])


class _LumaMeter:
    """How much pictures differ from the ones before them."""

    def __init__(self) -> None:
        self._scaler = VideoReformatter()
        self._last: np.ndarray | None = None

    def change(self, picture: av.VideoFrame) -> float | None:
        """Mean absolute difference, 0 to 255; None for the first picture, and for what swscale cannot convert."""
        try:
            scaled = self._scaler.reformat(picture, *_LUMA_SIZE, "gray", interpolation=Interpolation.POINT, threads=1)
        except MemoryError:
            raise
        except (av.error.FFmpegError, ValueError):
            return None
        luma = plane_array(scaled.planes[0])
        last, self._last = self._last, luma
        return None if last is None else float((np.maximum(luma, last) - np.minimum(luma, last)).mean())


class _SoundMeter:
    """Energy of the sound, over all channels, in windows of 10 ms that are counted from the first sample.

    Timestamps are followed from run to run: a run ends where they jump, or where the format of the sound changes.
    """

    def __init__(self) -> None:
        self._group: list[av.AudioFrame] = []
        self._num_grouped = 0
        self._format: tuple[str, str, int] | None = None
        self._due_seconds = 0.0
        self._group_seconds = 0.0
        self._grid_seconds: float | None = None
        self._blocks: dict[int, np.ndarray] = {}
        """Second from ``grid_seconds``: sum of squares and number of samples [shape=(100, 2)]"""

    def add(self, sound: av.AudioFrame) -> None:
        if not sound.samples or sound.sample_rate not in _SAMPLE_RATES or sound.format.packed.name not in _FULL_SCALE:
            return
        sound_format = (sound.format.name, sound.layout.name, sound.sample_rate)
        seconds = self._due_seconds if sound.time is None else sound.time
        goes_on = sound_format == self._format and abs(seconds - self._due_seconds) <= _MAX_JITTER_SECONDS
        if not goes_on or self._num_grouped >= _GROUP_SAMPLES:
            self._end_group()
            self._format = sound_format
            self._group_seconds = self._due_seconds = self._due_seconds if goes_on else seconds
        if self._grid_seconds is None:
            self._grid_seconds = seconds
        self._group.append(sound)
        self._num_grouped += sound.samples
        self._due_seconds += sound.samples / sound.sample_rate

    def _end_group(self) -> None:
        offset_seconds = self._group_seconds - (self._grid_seconds or 0.0)
        if self._group and abs(offset_seconds) < _MAX_SECONDS:
            rate = self._group[0].sample_rate
            step = max(1, rate // _ENOUGH_HERTZ)
            self._add_squares(_squares(self._group, step), round(offset_seconds * rate), rate, step)
        self._group, self._num_grouped = [], 0

    def _add_squares(self, squares: np.ndarray, first: int, rate: int, step: int) -> None:
        """Add up every ``step``-th sample by window; sample ``first`` is counted from the start of window 0."""
        # Sample i is in window i * 100 // rate, and window w starts with sample ceil(w * rate / 100): at 11,025 Hz
        # windows 0, 1 and 2 start with samples 0, 111 and 221.
        stop = first + step * (len(squares) - 1) + 1
        windows = np.arange(first * _WINDOWS_PER_SECOND // rate, (stop - 1) * _WINDOWS_PER_SECOND // rate + 1)
        starts = np.maximum(-((first + (-windows * rate // _WINDOWS_PER_SECOND)) // step), 0)
        sums = np.stack([np.add.reduceat(squares, starts), np.diff(starts, append=len(squares))], axis=1)
        self._add_windows(windows, sums)

    def _add_windows(self, windows: np.ndarray, sums: np.ndarray) -> None:
        seconds, places = np.divmod(windows, _WINDOWS_PER_SECOND)
        for second in range(int(seconds[0]), int(seconds[-1]) + 1):
            if second not in self._blocks:
                if len(self._blocks) >= _MAX_SECONDS:
                    return
                self._blocks[second] = np.zeros((_WINDOWS_PER_SECOND, 2), np.float32)
            here = seconds == second
            self._blocks[second][places[here]] += sums[here]

    def windows(self, start_seconds: float | None) -> np.ndarray:
        """Hand out the windows from a time on, to the nearest one [shape=(num_seconds, 100, 2)]."""
        self._end_group()
        if start_seconds is None or self._grid_seconds is None:
            return np.zeros((0, _WINDOWS_PER_SECOND, 2))
        ahead = round((self._grid_seconds - start_seconds) * _WINDOWS_PER_SECOND)
        placed = {ahead + second * _WINDOWS_PER_SECOND: block for second, block in self._blocks.items()}
        limit = _MAX_SECONDS * _WINDOWS_PER_SECOND
        ends = [place + int(np.flatnonzero(block[:, 1])[-1]) + 1 for place, block in placed.items() if place < limit]
        num_seconds = min(-(-max(ends, default=0) // _WINDOWS_PER_SECOND), _MAX_SECONDS)
        dense = np.zeros((max(num_seconds, 0) * _WINDOWS_PER_SECOND, 2))
        for place, block in placed.items():
            start, stop = max(place, 0), min(place + _WINDOWS_PER_SECOND, len(dense))
            if start < stop:
                dense[start:stop] = block[start - place : stop - place]
        return dense.reshape(-1, _WINDOWS_PER_SECOND, 2)


def _squares(sounds: list[av.AudioFrame], step: int) -> np.ndarray:
    """Mean over the channels of the squares of every ``step``-th sample [shape=(n,), dtype=float32, 0 to 1]."""
    sound_format, num_channels = sounds[0].format, sounds[0].layout.nb_channels
    samples = np.concatenate([sound.to_ndarray() for sound in sounds], axis=1)
    if not sound_format.is_planar:
        samples = samples.reshape(-1, num_channels).T
    samples = samples[:, ::step].astype(np.float32)
    if sound_format.packed.name == "u8":
        samples -= 128
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("cn,cn->n", samples, samples)
    mean = squares / np.float32(num_channels * _FULL_SCALE[sound_format.packed.name] ** 2)
    return np.where(mean < _MAX_SQUARE, mean, np.float32(0))


def _energies_and_peaks(windows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Root mean square of each second, and the loudest windows [seconds] of those louder than twice the median."""
    energies = np.sqrt(windows[..., 0].sum(1) / np.maximum(windows[..., 1].sum(1), 1))
    loudness = np.sqrt(windows[..., 0] / np.maximum(windows[..., 1], 1))
    threshold = 2 * np.median(energies)
    peaks: Any = np.arange(len(windows)) + loudness.argmax(1) / _WINDOWS_PER_SECOND
    is_loud = loudness.max(1) > threshold
    return tuple(np.round(energies, 6).tolist()), tuple(np.round(peaks[is_loud], 2).tolist())
