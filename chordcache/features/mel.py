"""The feature "mel": the log-mel-spectrogram of the audio track, computed in blocks while the track is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import ClassVar, TypeAlias

import av
import numpy as np

from chordcache.features.base import NO_ROWS, Extractor, Rows, VideoInfo

JUMP_SECONDS = 0.05
"""[seconds] that a timestamp may be off before it means a gap or an overlap: muxers round, clocks drift."""

MAX_OVERLAP_SECONDS = 10.0
"""[seconds] that a timestamp may go back; further back, the clock was set anew, as where two recordings are joined."""

MAX_SILENCE_SECONDS = 600.0
"""[seconds] of gaps that are filled in one video; a timestamp that asks for more is wrong, perhaps on purpose."""

SAMPLE_RATES = range(1_000, 1_000_001)
"""[Hz] that sound may have: at less a small file lasts for weeks, at more libswresample's filter takes gigabytes."""

MAX_AMPLITUDE = 1e9
"""Samples beyond it are cut: float samples may be anything, and the square of this one still is a float32."""

SILENCE_DECIBELS = -100.0
"""What the power of a band is cut at, as librosa does."""

Filters: TypeAlias = "tuple[tuple[slice, np.ndarray], ...]"
"""For each mel band the frequencies that it takes, and the weight of each one's power [dtype=float32]."""

BLOCK_SAMPLES = 1 << 18
"""Windowed samples of all channels that are worked on at once. It bounds the memory, and changes no number."""


class MelExtractor(Extractor):
    """Log-mel-spectrogram of the audio track, with the numbers of librosa.

    Arrays
    ------
    ``name`` [shape=(n, n_mels), or (n, C, n_mels) if not mono, dtype=float32, dB]

    Facts: ``start_seconds``, the time of the first sample on the clock of the video; ``row_seconds``, from one row to
    the next; ``silence``, what a row holds where there is no sound [dB]; ``num_channels`` if not mono.

    Row j is centred on ``start_seconds + j * hop_length / sample_rate``. There is silence before the first sample,
    after the last one, where sound cannot be decoded or mixed, and where timestamps leave a gap of more than 50 ms;
    of an overlap of more than 50 ms the later sound is dropped. A timestamp that goes back by more than 10 s, or that
    would make it more than 10 minutes of gaps, is not believed: the sound goes on without a gap, and the timestamps
    after it count from there. Once a timestamp is the same as the one before, there is no clock to go by (AVI, where
    the header is wrong), and the sound goes on without gaps.

    Parameters
    ----------
    name : str
        Of the feature.
    sample_rate : int
        [Hz] that the track is resampled to, by libswresample.
    n_fft : int
        [samples] of the periodic Hann window; at least 2.
    hop_length : int
        [samples] from one row to the next; 1 to ``n_fft``.
    n_mels : int
        Number of bands.
    fmin, fmax : float
        [Hz] Where the lowest band begins and the highest one ends; a ``fmax`` of None is half of ``sample_rate``.
    mono : bool
        Mix all channels down, by libswresample. Otherwise the first sound settles the channels.

    Notes
    -----
    Source: librosa 0.11, ``power_to_db(feature.melspectrogram(y=y, ...), ref=1.0, top_db=None)``.
    """

    version: ClassVar[int] = 2
    needs_sound: ClassVar[bool] = True
    units: ClassVar[dict[str, str]] = {"": "dB"}

    def __init__(
        self,
        name: str,
        *,
        sample_rate: int = 16000,
        n_fft: int = 400,
        hop_length: int = 160,
        n_mels: int = 80,
        fmin: float = 0.0,
        fmax: float | None = None,
        mono: bool = True,
    ) -> None:
        super().__init__(name)
        self._mono = mono
        self._bands = (sample_rate, n_fft, n_mels, fmin, fmax)
        self._hop_length = hop_length
        self._track = Track(sample_rate, mono=mono)

    def begin(self, video: VideoInfo) -> str | None:
        """Absent without an audio track."""
        if not video.has_sound:
            return "no audio track"
        window, filters = window_and_filters(*self._bands)
        self._spectrogram = Spectrogram(window, filters, self._hop_length)
        return None

    def add_sound(self, sound: av.AudioFrame) -> Rows:
        """Take a piece of the audio track; rows come out in blocks."""
        return self._joined(self._blocks(self._track.add(sound)))

    def finish(self) -> Rows:
        """Return the last rows, and settle the facts."""
        blocks = list(self._blocks(self._track.finish()))
        if not self._track.num_samples:
            return NO_ROWS
        self.facts["start_seconds"] = self._track.start_seconds
        self.facts["row_seconds"] = self._hop_length / self._bands[0]
        self.facts["silence"] = SILENCE_DECIBELS
        if not self._mono:
            self.facts["num_channels"] = self._track.num_channels
        return self._joined([*blocks, *self._spectrogram.finish()])

    @property
    def absent(self) -> str | None:
        """Absent if nothing of the track could be decoded."""
        return None if self._track.num_samples else "the audio track holds no samples"

    def num_rows(self, num_frames: int) -> int | None:
        """None: rows go by the clock of the sound."""
        return None

    def _blocks(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for samples in pieces:
            yield from self._spectrogram.add(samples)

    def _joined(self, blocks: Iterable[np.ndarray]) -> Rows:
        """Blocks [shape=(C, n, n_mels)] as rows of the feature."""
        found = list(blocks)
        if not found:
            return NO_ROWS
        rows = np.concatenate(found, axis=1).swapaxes(0, 1)
        return {self.name: np.ascontiguousarray(rows[:, 0] if self._mono else rows)}


@lru_cache(maxsize=4)
def window_and_filters(
    sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float | None
) -> tuple[np.ndarray, Filters]:
    """What turns samples into bands; the parameters are those of ``MelExtractor``.

    Returns
    -------
    tuple of np.ndarray [shape=(n_fft,), dtype=float64], Filters
        The window, and what each band is the sum of.
    """
    # Only librosa.filters: the first use of librosa.stft or librosa.feature has numba compile for 11 s. And only
    # here: importing it takes 0.7 s, which a process that only wants to know the extractor's version need not wait
    import librosa

    window = librosa.filters.get_window("hann", n_fft, fftbins=True)
    filters = librosa.filters.mel(sr=sample_rate, n_fft=n_fft, n_mels=n_mels, fmin=fmin, fmax=fmax)
    bands = []
    for weights in filters:
        used = np.flatnonzero(weights)
        band = slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)
        bands.append((band, weights[band].astype(np.float32)))
    return window, tuple(bands)


def log_mel(samples: np.ndarray, window: np.ndarray, filters: Filters, hop_length: int) -> np.ndarray:
    """Every whole window of a signal as a row of bands. Samples that are not a number are taken as 0.

    Parameters
    ----------
    samples : np.ndarray [shape=(C, num_samples), dtype=float32]
        At least one window long.
    window : np.ndarray
    filters : Filters
        See ``window_and_filters``.
    hop_length : int
        [samples]

    Returns
    -------
    np.ndarray [shape=(C, 1 + (num_samples - n_fft) // hop_length, n_mels), dtype=float32, dB]
    """
    samples = np.nan_to_num(samples).clip(-MAX_AMPLITUDE, MAX_AMPLITUDE)
    windows = np.lib.stride_tricks.sliding_window_view(samples, len(window), axis=1)[:, ::hop_length]
    spectrum = np.fft.rfft(windows * window).astype(np.complex64)  # in float64 up to here, as in librosa
    power = np.square(np.abs(spectrum))
    # Band by band, without BLAS, whose last bits depend on its number of threads
    bands = np.stack([np.einsum("...k,k->...", power[..., band], weights) for band, weights in filters], axis=-1)
    decibels: np.ndarray = 10 * np.log10(np.maximum(10 ** (SILENCE_DECIBELS / 10), bands))
    return decibels


class Spectrogram:
    """Log-mel rows of a signal that comes in pieces, with half a window of silence on either side.

    Parameters
    ----------
    window : np.ndarray
    filters : Filters
        See ``window_and_filters``.
    hop_length : int
        [samples] 1 to n_fft.
    """

    def __init__(self, window: np.ndarray, filters: Filters, hop_length: int) -> None:
        self._window, self._filters, self._hop_length = window, filters, hop_length
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0

    def add(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Take samples [shape=(C, n), dtype=float32]; yield blocks of rows [shape=(C, m, n_mels)] as they fill."""
        if not self._waiting:
            self._keep(self._silence(len(samples)))
        self._keep(samples)
        num_rows = max(1, BLOCK_SAMPLES // (len(self._window) * len(samples)))
        num_samples = len(self._window) + (num_rows - 1) * self._hop_length
        if self._num_waiting < num_samples:
            return
        signal = np.concatenate(self._waiting, axis=1)
        start = 0
        while signal.shape[1] - start >= num_samples:
            yield self._rows(signal[:, start : start + num_samples])
            start += num_rows * self._hop_length
        self._waiting, self._num_waiting = [], 0
        self._keep(signal[:, start:])

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the rest of the rows; there must have been samples."""
        yield from self.add(self._silence(len(self._waiting[0])))
        if self._num_waiting >= len(self._window):
            yield self._rows(np.concatenate(self._waiting, axis=1))

    def _rows(self, signal: np.ndarray) -> np.ndarray:
        return log_mel(signal, self._window, self._filters, self._hop_length)

    def _silence(self, num_channels: int) -> np.ndarray:
        return np.zeros((num_channels, len(self._window) // 2), np.float32)

    def _keep(self, samples: np.ndarray) -> None:
        self._waiting.append(samples)
        self._num_waiting += samples.shape[1]


class Track:
    """Decoded sound as one signal: one rate, one set of channels, and a clock that is true from end to end.

    The signal is made in runs. A run ends where the timestamps jump or the format of the sound changes; the next one
    is put where its time says, behind silence if that is later, cut at its start if it is earlier.

    Parameters
    ----------
    sample_rate : int
        [Hz] of the signal.
    mono : bool
        See ``MelExtractor``.
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
        """Handed out so far, of one channel"""
        self.num_channels = 0

    def add(self, sound: av.AudioFrame) -> Iterator[np.ndarray]:
        """Take decoded sound; yield the signal's next samples [shape=(C, n), dtype=float32]."""
        if not sound.samples or sound.sample_rate not in SAMPLE_RATES:
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

    def _follow_clock(self, sound: av.AudioFrame) -> bool:
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
        if abs(jump) <= JUMP_SECONDS:
            return False
        if jump < -MAX_OVERLAP_SECONDS or self._silence_seconds + jump > MAX_SILENCE_SECONDS:
            self._clock_seconds += jump
            return False
        self._silence_seconds += max(0.0, jump)
        self._due_seconds += jump
        return True

    def _begin_run(self, sound: av.AudioFrame) -> None:
        """Make a resampler for this sound, and find where the run starts."""
        self._layout = self._layout or sound.layout.name
        self._resampler = av.AudioResampler("fltp", self._layout, self._sample_rate)
        self.num_channels = self._resampler.layout.nb_channels
        self._num_missing = round(self._due_seconds * self._sample_rate) - self.num_samples

    def _resample(self, sound: av.AudioFrame | None) -> Iterator[np.ndarray]:
        """Resample a run's sound; None yields its end."""
        assert self._resampler is not None
        try:
            pieces = self._resampler.resample(sound)
        except MemoryError:
            raise
        except av.error.FFmpegError:  # channels that libswresample cannot mix, for one; the next run is a new attempt
            self._resampler = self._format = None
            return
        for piece in filter(None, pieces):  # PyAV hands out a None at the end if there was nothing to resample
            yield from self._place(piece.to_ndarray())

    def _place(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Hand out resampled sound: the first of a run behind silence, or cut."""
        while self._num_missing > 0:
            silence = np.zeros((len(samples), min(self._num_missing, BLOCK_SAMPLES)), np.float32)
            self._num_missing -= silence.shape[1]
            self.num_samples += silence.shape[1]
            yield silence
        kept = samples[:, -self._num_missing :]
        self._num_missing = min(0, self._num_missing + samples.shape[1])
        self.num_samples += kept.shape[1]
        yield kept
