"""Facts that need decoding: how much the picture moves and how loud the sound is, second by second."""

from __future__ import annotations

import math
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.video.reformatter import Interpolation, VideoReformatter

from chordcache.media.audio_track import AudioClock, Sound, is_readable
from chordcache.media.decoding import DecodedFrame
from chordcache.media.picture_data import plane_array, side_data
from chordcache.records import ContentFacts

MOTION_VECTOR_CODECS = frozenset(
    "h264 mpeg1video mpeg2video mpeg4 h263 h263p wmv1 wmv2 flv1 msmpeg4v1 msmpeg4v2 msmpeg4v3".split()
)
"""Codecs whose motion vectors libavcodec exports"""

_NUM_BINS = 16
_LUMA_SIZE = (160, 90)
"""Columns and rows of the points that are compared without motion vectors. On real clips, the mean difference
of these points is within 5 % of that of all pixels. swscale picks the points out of a 720p picture in 0.02 ms. Averages
take 0.15 ms."""

_ENOUGH_VECTORS = 1_000
"""Number of motion vectors up to which all of a picture are used. Of more vectors, only every third, fifth ... is used.
The step is odd, since a block's two vectors, or an odd and an even block, may differ. The step changes the mean of a
picture by 3 %, and that of a second by less."""

_WINDOWS_PER_SECOND = 100
_MAX_SECONDS = 86_400
"""One day. Content further from the first frame, or from the first sound, is not counted. Its timestamp is most likely
wrong, and would take memory."""

_GROUP_SAMPLES = 1 << 14
"""Number of samples of sound that are measured together. numpy takes more time per call than per sample."""

_ENOUGH_HERTZ = 8_000
"""[Hz] Lowest rate to which samples are thinned out. The loudness of sound is measured, not its tone."""

_FULL_SCALE = {"u8": 2.0**7, "s16": 2.0**15, "s32": 2.0**31, "flt": 1.0, "dbl": 1.0}
"""Value that stands for 1, by sample format, packed or planar. numpy has no array of the other formats from PyAV."""

_LOWEST_PEAK = 0.001
"""[root mean square, 0 to 1] Sound that is not louder, -60 dB, counts as noise. In digital silence the median second is
0, and dither of one bit, -90 dB, would be a peak of each second that has it."""

_MAX_SQUARE = 1e18
"""Largest square of a sample. Float samples may have any value. What is larger, or not a number, counts as silence."""


MOTION_VECTOR = np.dtype(
    {
        "names": ["source", "size", "position", "motion", "motion_scale"],
        "formats": ["<i4", "(2,)u1", "(2,)<i2", "(2,)<i4", "<u2"],
        "offsets": [0, 4, 10, 24, 32],
        "itemsize": 40,
    }
)
"""AVMotionVector of libavutil/motion_vector.h, without the fields that are not used. Pairs are (x, y): ``size`` is
(w, h), ``position`` is (dst_x, dst_y), the center. ``motion_scale`` is the same for all vectors of a picture."""


def motion_vectors(picture: av.VideoFrame) -> np.ndarray | None:
    """Return the motion vectors that libavcodec exported with a picture.

    Returns
    -------
    np.ndarray [shape=(n,), n >= 1, dtype=MOTION_VECTOR] or None
        None if there are none, as for intra pictures, or if PyAV cannot list them.
    """
    try:
        vectors = side_data(picture, SideDataType.MOTION_VECTORS)
    except ValueError:
        return None
    if vectors is None or not len(vectors):
        return None
    return np.frombuffer(vectors, MOTION_VECTOR)


class ContentMeter:
    """Meter that gathers ``ContentFacts`` from frames and sound as they are decoded, in any order of the two.

    Each second of video takes 1 kB of memory, up to one day.

    Parameters
    ----------
    codec : str
        libavcodec's canonical name. For one of ``MOTION_VECTOR_CODECS``, the pictures must come with motion vectors.
    """

    def __init__(self, codec: str) -> None:
        self._source = "codec" if codec in MOTION_VECTOR_CODECS else "luma"
        self._start_seconds: float | None = None
        self._motion: dict[int, list[float]] = {}
        """Sum and number of frames, by second"""
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

    def add_sound(self, sound: Sound) -> None:
        """Take the next part of the sound."""
        self._sound.add(sound)

    def facts(self) -> ContentFacts:
        """Return the facts that were gathered."""
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
    """Return the mean length of the motion vectors, weighted by area [pixels]; None if a picture has none."""
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
    """Meter of the difference between each picture and the one before it."""

    def __init__(self) -> None:
        self._scaler = VideoReformatter()
        self._last: np.ndarray | None = None

    def change(self, picture: av.VideoFrame) -> float | None:
        """Return the mean absolute difference, 0 to 255; None for the first picture, or if swscale fails."""
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

    The sound is measured in groups, each a part of one of the runs of an ``AudioClock``.
    """

    def __init__(self) -> None:
        self._group: list[Sound] = []
        self._num_grouped = 0
        self._clock = AudioClock(1 / _WINDOWS_PER_SECOND)
        self._group_seconds = 0.0
        """[seconds] Begin of the group, from the first sample on"""
        self._blocks: dict[int, np.ndarray] = {}
        """Sum of squares and number of samples [shape=(100, 2)], by second from the first sample on"""

    def add(self, sound: Sound) -> None:
        if not is_readable(sound) or sound.format.packed.name not in _FULL_SCALE:
            return
        if self._clock.follow(sound) or self._num_grouped >= _GROUP_SAMPLES:
            self._end_group()
            self._group_seconds = self._clock.position_seconds
        self._group.append(sound)
        self._num_grouped += sound.samples

    def _end_group(self) -> None:
        if self._group and abs(self._group_seconds) < _MAX_SECONDS:
            rate = self._group[0].sample_rate
            step = max(1, rate // _ENOUGH_HERTZ)
            self._add_squares(_squares(self._group, step), round(self._group_seconds * rate), rate, step)
        self._group, self._num_grouped = [], 0

    def _add_squares(self, squares: np.ndarray, first: int, rate: int, step: int) -> None:
        """Add up every ``step``-th sample by window; ``first`` is the number of the first sample from window 0 on."""
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
        """Return the windows from a time on, to the nearest one [shape=(num_seconds, 100, 2)]."""
        self._end_group()
        if start_seconds is None:
            return np.zeros((0, _WINDOWS_PER_SECOND, 2))
        ahead = round((self._clock.start_seconds - start_seconds) * _WINDOWS_PER_SECOND)
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


def _squares(sounds: list[Sound], step: int) -> np.ndarray:
    """Return the mean square over the channels of every ``step``-th sample [shape=(n,), dtype=float32, 0 to 1]."""
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
    """Return the root mean square of each second, and its loudest window [seconds] if that is a peak."""
    energies = np.sqrt(windows[..., 0].sum(1) / np.maximum(windows[..., 1].sum(1), 1))
    loudness = np.sqrt(windows[..., 0] / np.maximum(windows[..., 1], 1))
    threshold = max(2 * np.median(energies), _LOWEST_PEAK)
    peaks: Any = np.arange(len(windows)) + loudness.argmax(1) / _WINDOWS_PER_SECOND
    is_loud = loudness.max(1) > threshold
    return tuple(np.round(energies, 6).tolist()), tuple(np.round(peaks[is_loud], 2).tolist())
