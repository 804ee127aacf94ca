"""The audio track as one signal: one rate, one set of channels, and no gaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import av
import numpy as np

Sound: TypeAlias = av.AudioFrame
"""A piece of the audio track as its decoder made it."""

_JUMP_SECONDS = 0.05
"""[seconds] that a timestamp may be off before it means a gap or an overlap: muxers round, clocks drift."""

_MAX_OVERLAP_SECONDS = 10.0
"""[seconds] that a timestamp may go back; further back, the clock was set anew, as where two recordings are joined."""

_MAX_SILENCE_SECONDS = 600.0
"""[seconds] of gaps that are filled in one video; a timestamp that asks for more is wrong, perhaps on purpose."""

_SAMPLE_RATES = range(1_000, 1_000_001)
"""[Hz] that sound may have: at less a small file lasts for weeks, at more libswresample's filter takes gigabytes."""

_MAX_SILENCE_SAMPLES = 1 << 18
"""Of one channel, yielded at once."""


class AudioTrack:
    """Decoded sound as one signal: one rate, one set of channels, and a clock that is true from end to end.

    The signal is made in runs. A run ends where the timestamps jump or the format of the sound changes; the next one
    is put where its time says, behind silence if that is later, cut at its start if it is earlier.

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
        self._due_seconds = 0.0  # of the next sound, from the first sample on
        self._clock_seconds: float | None = None  # what timestamps say where due_seconds is 0
        self._silence_seconds = 0.0
        self._num_missing = 0  # samples of silence before what comes next; negative: so many to cut off it
        self._last_pts: int | None = None
        self._has_clock = True
        self.start_seconds = 0.0
        """[seconds] Timestamp of the first sample; 0 if it has none"""
        self.num_samples = 0
        """Yielded so far, of one channel"""
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
        """End the run: yield what the resampler holds back."""
        if self._resampler is not None:
            yield from self._resample(None)
        self._resampler = self._format = None

    def _follow_clock(self, sound: Sound) -> bool:
        """Compare the timestamp with the time at which this sound is due. True if the sound belongs elsewhere."""
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
        """Make a resampler for this sound, and find where the run starts."""
        self._layout = self._layout or sound.layout.name
        self._resampler = av.AudioResampler("fltp", self._layout, self._sample_rate)
        self.num_channels = self._resampler.layout.nb_channels
        self._num_missing = round(self._due_seconds * self._sample_rate) - self.num_samples

    def _resample(self, sound: Sound | None) -> Iterator[np.ndarray]:
        """Resample a run's sound; None yields its end."""
        assert self._resampler is not None
        try:
            pieces = self._resampler.resample(sound)
        except MemoryError:
            raise
        except av.error.FFmpegError:  # channels that libswresample cannot mix, for one; the next run is a new attempt
            self._resampler = self._format = None
            return
        for piece in filter(None, pieces):  # PyAV gives a None at the end if there was nothing to resample
            yield from self._place(piece.to_ndarray())

    def _place(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Yield resampled sound: the first of a run behind silence, or cut."""
        while self._num_missing > 0:
            silence = np.zeros((len(samples), min(self._num_missing, _MAX_SILENCE_SAMPLES)), np.float32)
            self._num_missing -= silence.shape[1]
            self.num_samples += silence.shape[1]
            yield silence
        kept = samples[:, -self._num_missing :]
        self._num_missing = min(0, self._num_missing + samples.shape[1])
        self.num_samples += kept.shape[1]
        yield kept
