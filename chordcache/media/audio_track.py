"""The time of decoded sound, and the audio track as one signal: one rate, one set of channels, and no gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import av
import numpy as np

Sound: TypeAlias = av.AudioFrame
"""A part of the audio track, as the decoder returns it"""

SAMPLE_RATES = range(1_000, 1_000_001)
"""[Hz] Rates of sound that is read. At a lower rate, a small file lasts for weeks. At a higher rate, libswresample's
filter takes gigabytes."""

_MAX_JITTER_SECONDS = 0.05
"""[seconds] Largest error of a timestamp that does not mean a gap or an overlap in the signal. Muxers round, and clocks
drift."""

_MAX_OVERLAP_SECONDS = 10.0
"""[seconds] Longest step back of a timestamp that means an overlap. A longer one means that the clock was set back, as
where two recordings are joined."""

_MAX_SILENCE_SECONDS = 600.0
"""[seconds] Most silence that fills the gaps of one video. A timestamp that needs more is wrong, perhaps on purpose."""

_MAX_SILENCE_SAMPLES = 1 << 18
"""Most samples of silence, of one channel, that are yielded at once"""


def is_readable(sound: Sound) -> bool:
    """Return whether a part of the sound has samples, and a rate that is read."""
    return bool(sound.samples) and sound.sample_rate in SAMPLE_RATES


class AudioClock:
    """Clock of decoded sound. It decides where each part begins: after the part before, after a gap, or in an overlap.

    Sound is divided into runs. A run ends where the timestamps jump or the format of the sound changes. Inside a run,
    the samples follow each other, whatever the timestamps say: containers round these, by more than a sample.

    If a timestamp equals the one before, the track has no usable clock (an AVI with a wrong header). The sound then
    continues without gaps.

    Parameters
    ----------
    max_jitter_seconds : float
        [seconds] Largest error of a timestamp that is not a jump. Containers round to 1 ms. Vorbis timestamps differ by
        11 ms where the length of the blocks changes.
    max_overlap_seconds, max_silence_seconds : float
        [seconds] Longest step back, and largest sum of all gaps. A timestamp that goes further is ignored, and later
        timestamps count from there. By default every jump is followed.
    """

    def __init__(
        self,
        max_jitter_seconds: float = 0.012,
        *,
        max_overlap_seconds: float = math.inf,
        max_silence_seconds: float = math.inf,
    ) -> None:
        self._max_jitter_seconds = max_jitter_seconds
        self._max_overlap_seconds = max_overlap_seconds
        self._max_silence_seconds = max_silence_seconds
        self._format: tuple[str, str, int] | None = None
        self._due_seconds = 0.0  # time of the next sound, from the first sample on
        self._zero_seconds: float | None = None  # the timestamp where due_seconds is 0
        self._silence_seconds = 0.0
        self._last_pts: int | None = None
        self._has_clock = True
        self.start_seconds = 0.0
        """[seconds] Timestamp of the first sample; 0 if no sound has one"""
        self.position_seconds = 0.0
        """[seconds] Begin of the latest sound, from the first sample on"""

    def follow(self, sound: Sound) -> bool:
        """Take the next sound, for which ``is_readable`` is true. Return whether a new run begins with it."""
        jumped = self._has_jumped(sound)
        sound_format = (sound.format.name, sound.layout.name, sound.sample_rate)
        begins_run = jumped or sound_format != self._format
        self._format = sound_format
        self.position_seconds = self._due_seconds
        self._due_seconds += sound.samples / sound.sample_rate
        return begins_run

    def _has_jumped(self, sound: Sound) -> bool:
        """Compare the timestamp with the time at which this sound is due, and correct that time after a jump."""
        if sound.pts is None or sound.time_base is None:
            return False
        self._has_clock &= sound.pts != self._last_pts
        if not self._has_clock:
            return False
        self._last_pts = sound.pts
        unit = sound.time_base
        seconds = (
            sound.pts * unit.numerator / unit.denominator
        )  # the same number as float(pts * unit), three times as fast
        if self._zero_seconds is None:
            self._zero_seconds = self.start_seconds = seconds - self._due_seconds
        jump = seconds - self._zero_seconds - self._due_seconds
        if abs(jump) <= self._max_jitter_seconds:
            return False
        if jump < -self._max_overlap_seconds or self._silence_seconds + jump > self._max_silence_seconds:
            self._zero_seconds += jump
            return False
        self._silence_seconds += max(0.0, jump)
        self._due_seconds += jump
        return True


class PlacedSound:
    """Decoded sound at its own rate, with the place of each piece in the signal.

    Parameters
    ----------
    layout : av.AudioLayout
        Channels of the pieces.
    sample_rate : int
        [Hz] of the pieces.
    """

    def __init__(self, layout: av.AudioLayout, sample_rate: int) -> None:
        self._layout = layout
        self._sample_rate = sample_rate
        self._clock = AudioClock()
        self._resampler: av.AudioResampler | None = None
        self._next = 0

    @property
    def start_seconds(self) -> float:
        """[seconds] Timestamp of sample 0; 0 if no sound has one."""
        return self._clock.start_seconds

    def pieces(self, sound: Sound) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the samples of the next sound [shape=(n, channels), dtype=float32], after the number of the first one.

        ``is_readable`` must be true for the sound.
        """
        if self._clock.follow(sound) or self._resampler is None:
            self._resampler = av.AudioResampler("flt", self._layout, self._sample_rate)
            self._next = round(self._clock.position_seconds * self._sample_rate)
        for frame in self._resampler.resample(sound):
            piece = frame.to_ndarray().reshape(-1, self._layout.nb_channels)
            yield self._next, piece
            self._next += len(piece)


class AudioTrack:
    """Decoded sound as one signal: one rate, one set of channels, and a clock that is right from end to end.

    The signal is made in the runs of an ``AudioClock``. If a run begins later than the signal ends, silence fills the
    gap. If it begins earlier, its start is cut off.

    Parameters
    ----------
    sample_rate : int, optional
        [Hz] of the signal. None takes the rate of the first sound.
    mono : bool
        Mix all channels into one.
    """

    def __init__(self, sample_rate: int | None, *, mono: bool) -> None:
        self.sample_rate = sample_rate
        """[Hz] of the signal, or None before the first sound"""
        self._layout = "mono" if mono else None
        self._resampler: av.AudioResampler | None = None
        self._clock = AudioClock(
            _MAX_JITTER_SECONDS, max_overlap_seconds=_MAX_OVERLAP_SECONDS, max_silence_seconds=_MAX_SILENCE_SECONDS
        )
        self._num_missing = 0  # samples of silence before the next sound; if negative, samples to cut off the sound
        self.num_samples = 0
        """Number of samples yielded so far, of one channel"""
        self.num_channels = 0

    @property
    def start_seconds(self) -> float:
        """[seconds] Timestamp of the first sample; 0 if no sound has one."""
        return self._clock.start_seconds

    def add(self, sound: Sound) -> Iterator[np.ndarray]:
        """Take decoded sound; yield the signal's next samples [shape=(C, n), dtype=float32]."""
        if not is_readable(sound):
            return
        if self._clock.follow(sound) or self._resampler is None:
            yield from self.finish()
            self._begin_run(sound)
        yield from self._resample(sound)

    def finish(self) -> Iterator[np.ndarray]:
        """End the run: yield the samples that the resampler still holds."""
        if self._resampler is not None:
            yield from self._resample(None)
        self._resampler = None

    def _begin_run(self, sound: Sound) -> None:
        """Make a resampler for this sound, and determine where the run starts."""
        self._layout = self._layout or sound.layout.name
        self.sample_rate = self.sample_rate or sound.sample_rate
        self._resampler = av.AudioResampler("fltp", self._layout, self.sample_rate)
        self.num_channels = self._resampler.layout.nb_channels
        self._num_missing = round(self._clock.position_seconds * self.sample_rate) - self.num_samples

    def _resample(self, sound: Sound | None) -> Iterator[np.ndarray]:
        """Resample the sound of a run; None yields the end of the run."""
        assert self._resampler is not None
        try:
            pieces = self._resampler.resample(sound)
        except MemoryError:
            raise
        except av.error.FFmpegError:  # such as channels that libswresample cannot mix; the next run is a new attempt
            self._resampler = None
            return
        for piece in filter(None, pieces):  # PyAV returns None at the end if there was nothing to resample
            yield from self._place(piece.to_ndarray())

    def _place(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Yield resampled sound. At the start of a run, add silence before it or cut it."""
        while self._num_missing > 0:
            # One zero, repeated: a gap of minutes takes no memory while it waits
            silence = np.broadcast_to(np.float32(0), (len(samples), min(self._num_missing, _MAX_SILENCE_SAMPLES)))
            self._num_missing -= silence.shape[1]
            self.num_samples += silence.shape[1]
            yield silence
        kept = samples[:, -self._num_missing :]
        self._num_missing = min(0, self._num_missing + samples.shape[1])
        self.num_samples += kept.shape[1]
        yield kept
