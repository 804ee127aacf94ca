"""The audio track as one signal: one rate, one set of channels, and no gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import av
import numpy as np

Sound: TypeAlias = av.AudioFrame
"""A part of the audio track, as the decoder returns it"""

_JUMP_SECONDS = 0.05
"""[seconds] Largest error of a timestamp that does not mean a gap or an overlap. Muxers round, and clocks drift."""

_MAX_OVERLAP_SECONDS = 10.0
"""[seconds] Longest step back of a timestamp that means an overlap. A longer one means that the clock was set back, as
where two recordings are joined."""

_MAX_SILENCE_SECONDS = 600.0
"""[seconds] Most silence that fills the gaps of one video. A timestamp that needs more is wrong, perhaps on purpose."""

_SAMPLE_RATES = range(1_000, 1_000_001)
"""[Hz] Rates of sound that is read. At a lower rate, a small file lasts for weeks. At a higher rate, libswresample's
filter takes gigabytes."""

_MAX_SILENCE_SAMPLES = 1 << 18
"""Most samples of silence, of one channel, that are yielded at once"""


class AudioTrack:
    """Decoded sound as one signal: one rate, one set of channels, and a clock that is right from end to end.

    The signal is made in runs. A run ends where the timestamps jump or the format of the sound changes. The timestamp
    of the next run decides where that run begins. If this is later than the end of the signal, silence fills the gap.
    If it is earlier, the start of the run is cut off.

    Parameters
    ----------
    sample_rate : int
        [Hz] of the signal.
    mono : bool
        Mix all channels into one.
    """

    def __init__(self, sample_rate: int, *, mono: bool) -> None:
        self._sample_rate = sample_rate
        self._layout = "mono" if mono else None
        self._resampler: av.AudioResampler | None = None
        self._format: tuple[str, str, int] | None = None
        self._due_seconds = 0.0  # time of the next sound, from the first sample on
        self._clock_seconds: float | None = None  # the timestamp where due_seconds is 0
        self._silence_seconds = 0.0
        self._num_missing = 0  # samples of silence before the next sound; if negative, samples to cut off the sound
        self._last_pts: int | None = None
        self._has_clock = True
        self.start_seconds = 0.0
        """[seconds] Timestamp of the first sample; 0 if the sample has none"""
        self.num_samples = 0
        """Number of samples yielded so far, of one channel"""
        self.num_channels = 0

    def add(self, sound: Sound) -> Iterator[np.ndarray]:
        """Take decoded sound; yield the signal's next samples [shape=(C, n), dtype=float32]."""
        if not sound.samples or sound.sample_rate not in _SAMPLE_RATES:
            return
        jumped = self._follow_clock(sound)
        sound_format = (sound.format.name, sound.layout.name, sound.sample_rate)
        if jumped or sound_format != self._format:
            yield from self.finish()
            self._begin_run(sound)
            self._format = sound_format
        self._due_seconds += sound.samples / sound.sample_rate
        yield from self._resample(sound)

    def finish(self) -> Iterator[np.ndarray]:
        """End the run: yield the samples that the resampler still holds."""
        if self._resampler is not None:
            yield from self._resample(None)
        self._resampler = self._format = None

    def _follow_clock(self, sound: Sound) -> bool:
        """Compare the timestamp with the time at which this sound is due. Return True if a new run begins here."""
        if sound.pts is None or sound.time_base is None:
            return False
        self._has_clock &= sound.pts != self._last_pts
        if not self._has_clock:
            return False
        self._last_pts = sound.pts
        seconds = float(sound.pts * sound.time_base)
        if self._clock_seconds is None:
            self._clock_seconds = seconds - self._due_seconds
            self.start_seconds = self._clock_seconds
        jump = seconds - self._clock_seconds - self._due_seconds
        if abs(jump) <= _JUMP_SECONDS:
            return False
        if jump < -_MAX_OVERLAP_SECONDS or self._silence_seconds + jump > _MAX_SILENCE_SECONDS:
            self._clock_seconds += jump
            return False
        self._silence_seconds += max(0.0, jump)
        self._due_seconds += jump
        return True

    def _begin_run(self, sound: Sound) -> None:
        """Make a resampler for this sound, and determine where the run starts."""
        self._layout = self._layout or sound.layout.name
        self._resampler = av.AudioResampler("fltp", self._layout, self._sample_rate)
        self.num_channels = self._resampler.layout.nb_channels
        self._num_missing = round(self._due_seconds * self._sample_rate) - self.num_samples

    def _resample(self, sound: Sound | None) -> Iterator[np.ndarray]:
        """Resample the sound of a run; None yields the end of the run."""
        assert self._resampler is not None
        try:
            pieces = self._resampler.resample(sound)
        except MemoryError:
            raise
        except av.error.FFmpegError:  # such as channels that libswresample cannot mix; the next run is a new attempt
            self._resampler = self._format = None
            return
        for piece in filter(None, pieces):  # PyAV returns None at the end if there was nothing to resample
            yield from self._place(piece.to_ndarray())

    def _place(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Yield resampled sound. At the start of a run, add silence before it or cut it."""
        while self._num_missing > 0:
            silence = np.zeros((len(samples), min(self._num_missing, _MAX_SILENCE_SAMPLES)), np.float32)
            self._num_missing -= silence.shape[1]
            self.num_samples += silence.shape[1]
            yield silence
        kept = samples[:, -self._num_missing :]
        self._num_missing = min(0, self._num_missing + samples.shape[1])
        self.num_samples += kept.shape[1]
        yield kept
