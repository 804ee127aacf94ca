"""Facts that need decoding: motion, loudness, hashes and cuts, second by second."""

from __future__ import annotations

import math
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter

from chordcache.media.audio_track import AudioClock, Sound
from chordcache.media.decoding import DecodedFrame
from chordcache.media.picture_data import plane_array
from chordcache.media.picture_facts import CutFinder, PictureDigest, SecondHashes, mean_difference
from chordcache.records import ContentFacts

_NUM_BINS = 16
_NUM_COLUMNS, _NUM_ROWS = 160, 90
"""Most points that are compared, evenly distributed over the picture. On real clips, their mean difference is within 5
% of that of all pixels. It takes 0.02 ms, and up to 0.05 ms if a 720p picture has left the CPU's cache."""

_PLANAR_LUMA = ("yuv4", "yuvj4", "yuva4", "nv1", "nv2", "gray")
"""Beginnings of the names of pixel formats whose first plane is luma, alone"""

_WINDOWS_PER_SECOND = 100
_MAX_SECONDS = 86_400
"""One day. Content further from the first frame, or from the first sound, is not counted. Its timestamp is most likely
wrong, and would take memory."""

_GROUP_SAMPLES = 1 << 14
"""Number of samples of sound that are measured together. numpy takes more time per call than per sample."""

_ENOUGH_HERTZ = 8_000
"""[Hz] Lowest rate to which samples are thinned out. The loudness of sound is measured, not its tone."""

_FORMATS = {
    "u8": ("u1", 2.0**7),
    "s16": ("i2", 2.0**15),
    "s32": ("i4", 2.0**31),
    "flt": ("f4", 1.0),
    "dbl": ("f8", 1.0),
}
"""Type of the samples, and value that stands for 1, by packed sample format. numpy cannot view the others from PyAV."""

_LOWEST_PEAK = 0.001
"""[root mean square, 0 to 1] Sound that is not louder, -60 dB, counts as noise. In digital silence the median second is
0, and dither of one bit, -90 dB, would be a peak of each second that has it."""

_MAX_SQUARE = 1e18
"""Largest square of a sample. Float samples may have any value. What is larger, or not a number, counts as silence."""


class ContentMeter:
    """Meter that gathers ``ContentFacts`` from frames and sound as they are decoded, in any order of the two.

    Each second of video takes 1 kB of memory, up to one day.
    """

    def __init__(self) -> None:
        self._start_seconds: float | None = None
        self._motion: dict[int, list[float]] = {}
        """Sum and number of frames, by second"""
        self._histogram = [0] * _NUM_BINS
        self._points = LumaPoints()
        self._last: np.ndarray | None = None
        """Points of the last picture"""
        self._digest, self._hashes, self._cuts = PictureDigest(), SecondHashes(), CutFinder()
        self._sound = _SoundMeter()

    def add_frame(self, frame: DecodedFrame) -> None:
        """Take the next frame, in presentation order."""
        if self._start_seconds is None:
            self._start_seconds = frame.pts_seconds
        last, self._last = self._last, self._points.of(frame.picture)
        self._digest.add(self._last, frame.pts_seconds)
        seconds = frame.pts_seconds - self._start_seconds
        if self._last is None or not 0 <= seconds < _MAX_SECONDS:
            return
        self._hashes.add(self._last, seconds)
        motion = -1.0
        if last is not None and last.shape == self._last.shape:
            motion = min(255.0, mean_difference(last, self._last) * 255 / self._points.white)
            self._add_motion(math.floor(seconds), motion)
        self._cuts.add(self._last, seconds, motion)

    def _add_motion(self, second: int, motion: float) -> None:
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
        self._cuts.finish()
        totals = (self._motion.get(second, (0.0, 1)) for second in range(max(self._motion, default=-1) + 1))
        return ContentFacts(
            motion_per_second=tuple(round(total / count, 4) for total, count in totals),
            motion_histogram=tuple(self._histogram),
            audio_energy_per_second=energies,
            audio_peaks_seconds=peaks,
            content_id=self._digest.hexdigest(),
            second_hashes=self._hashes.hexdigits(),
            cuts_seconds=tuple(round(seconds, 6) for seconds in self._cuts.seconds),
        )


class LumaPoints:
    """Sampler of the luma of pictures, at the same points of each."""

    def __init__(self) -> None:
        self._scaler = VideoReformatter()
        self.white = 255
        """Distance of white from black in the points of the last picture: 219 if black is 16, 255 if it is 0"""

    def of(self, picture: av.VideoFrame) -> np.ndarray | None:
        """Return a copy of the points [shape=(H, W), dtype=uint8], or None if swscale refuses the picture."""
        is_plane, self.white = _luma_of(picture)
        if is_plane:
            luma = plane_array(picture.planes[0])
            rows, columns = -(-luma.shape[0] // _NUM_ROWS), -(-luma.shape[1] // _NUM_COLUMNS)
            return luma[rows // 2 :: rows, columns // 2 :: columns].copy()
        try:
            scaled = self._scaler.reformat(
                picture, _NUM_COLUMNS, _NUM_ROWS, "gray", interpolation=Interpolation.POINT, threads=1
            )
        except MemoryError:
            raise
        except (av.error.FFmpegError, ValueError):
            return None
        return plane_array(scaled.planes[0])


def _luma_of(picture: av.VideoFrame) -> tuple[bool, int]:
    """Return whether the first plane is luma of 8 bits, alone, and the distance of white from black."""
    name = picture.format.name
    is_gray = name.startswith(("gray", "ya"))
    is_limited_gray = is_gray and picture.color_range == ColorRange.MPEG
    if name.startswith(_PLANAR_LUMA) and picture.format.components[0].bits == 8:
        is_full = picture.color_range == ColorRange.JPEG or name.startswith("yuvj") or (is_gray and not is_limited_gray)
        return True, 255 if is_full else 219
    return False, 219 if is_limited_gray else 255  # swscale keeps the range of gray


class _SoundMeter:
    """Energy of the sound, over all channels, in windows of 10 ms that are counted from the first sample.

    The sound is measured in groups, each a part of one of the runs of an ``AudioClock``.
    """

    def __init__(self) -> None:
        self._group: list[Sound] = []
        self._num_grouped = 0
        self._clock = AudioClock()
        self._group_seconds = 0.0
        """[seconds] Begin of the group, from the first sample on"""
        self._blocks: dict[int, np.ndarray] = {}
        """Sum of squares and number of samples [shape=(100, 2)], by second from the first sample on"""

    def add(self, sound: Sound) -> None:
        if sound.format.packed.name in _FORMATS:
            self._place(sound)

    def _place(self, sound: Sound | None) -> None:
        for placed in self._clock.place(sound):
            if placed.begins_run or self._num_grouped >= _GROUP_SAMPLES:
                self._end_group()
                self._group_seconds = placed.position_seconds
            self._group.append(placed.sound)
            self._num_grouped += placed.sound.samples

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
        self._place(None)
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


@np.errstate(over="ignore", invalid="ignore")
def _squares(sounds: list[Sound], step: int) -> np.ndarray:
    """Return the mean square over the channels of every ``step``-th sample [shape=(n,), dtype=float32, 0 to 1]."""
    name, num_channels = sounds[0].format.packed.name, sounds[0].layout.nb_channels
    num_samples = sum(sound.samples for sound in sounds)
    samples = np.empty((num_channels, -(-num_samples // step)), np.float32)
    start = 0
    for sound in sounds:  # view each plane and copy the few samples that are used: to_ndarray copies all of them
        first, stop = -(-start // step), -(-(start + sound.samples) // step)
        for channel, values in enumerate(_channels(sound)):
            samples[channel, first:stop] = values[first * step - start : sound.samples : step]
        start += sound.samples
    if name == "u8":
        samples -= 128
    mean = np.einsum("cn,cn->n", samples, samples) / np.float32(num_channels * _FORMATS[name][1] ** 2)
    return np.where(mean < _MAX_SQUARE, mean, np.float32(0))


def _channels(sound: Sound) -> list[np.ndarray]:
    """Return the samples of each channel, as views [shape=(n,)]. Planes may be longer than the sound."""
    planes: Any = sound.planes
    dtype, num_channels = _FORMATS[sound.format.packed.name][0], sound.layout.nb_channels
    if sound.format.is_planar:
        return [np.frombuffer(plane, dtype) for plane in planes]
    samples = np.frombuffer(planes[0], dtype, sound.samples * num_channels)
    return list(samples.reshape(-1, num_channels).T)


def _energies_and_peaks(windows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the root mean square of each second, and its loudest window [seconds] if that is a peak."""
    energies = np.sqrt(windows[..., 0].sum(1) / np.maximum(windows[..., 1].sum(1), 1))
    loudness = np.sqrt(windows[..., 0] / np.maximum(windows[..., 1], 1))
    threshold = max(2 * np.median(energies), _LOWEST_PEAK)
    peaks: Any = np.arange(len(windows)) + loudness.argmax(1) / _WINDOWS_PER_SECOND
    is_loud = loudness.max(1) > threshold
    return tuple(np.round(energies, 6).tolist()), tuple(np.round(peaks[is_loud], 2).tolist())
