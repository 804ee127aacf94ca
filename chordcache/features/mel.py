"""The feature "mel": the log-mel-spectrogram of the audio track, computed in blocks while the track is decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np

from chordcache.config.picture import PictureConfig
from chordcache.features.base import NO_ROWS, Rows, SoundExtractor, VideoInfo
from chordcache.features.read_side import Arrays, Clip, TimeLastReadSide, num_rows_in
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.opener import check_answer

MAX_AMPLITUDE = 1e9
"""Limit that samples are clipped to. Float samples may have any value, and its square still fits into float32."""

SILENCE_DECIBELS = -100.0
"""Lower limit of the power of a band [dB], as in librosa."""

BLOCK_SAMPLES = 1 << 18
"""Number of windowed samples, over all channels, that are processed at once. It bounds the memory and does not change
the result."""

Filters: TypeAlias = "tuple[tuple[slice, np.ndarray], ...]"
"""For each mel band, the slice of its frequencies and the weight of the power of each [dtype=float32]."""

_HERTZ_PER_MEL = 200.0 / 3
"""[Hz] Width of a mel below ``_LOG_HERTZ``"""

_LOG_HERTZ = 1000.0
"""[Hz] Frequency where the scale becomes logarithmic"""

_LOG_MEL = _LOG_HERTZ / _HERTZ_PER_MEL
"""The same on the scale. It is 15, but for the last bit, which librosa's numbers depend on."""

_LOG_STEP = np.log(6.4) / 27.0
"""Logarithm of the ratio of two frequencies that are a mel apart, above ``_LOG_HERTZ``"""


class MelExtractor(SoundExtractor):
    """Log-mel-spectrogram of the audio track, with the numbers of librosa.

    Arrays
    ------
    ``name`` [shape=(n, n_mels), or (n, C, n_mels) if not mono, dtype=float32, dB]

    Facts: ``start_seconds`` is the time of the first sample on the clock of the video. ``row_seconds`` is the time from
    one row to the next. ``silence`` is the value of a row without sound [dB]. ``num_channels`` is set if not mono.

    Row j is centered on ``start_seconds + j * hop_length / sample_rate``. There is silence before the first sample,
    after the last one, where sound cannot be decoded or mixed, and where timestamps leave a gap, such as that of one
    lost packet. If timestamps overlap, the later sound is dropped. Jitter is neither. See ``media.audio_track``.

    The feature is absent if the timestamps go back by more than 10 s, or the sum of gaps is more than 10 minutes. If a
    timestamp equals the one before, the track has no usable clock (an AVI with a wrong header). The sound then
    continues without gaps.

    The parameters are the settings of ``MelConfig``. Windows are periodic Hann windows. libswresample resamples the
    track, and mixes all channels down if ``mono``. Otherwise the first sound fixes the channels.

    Notes
    -----
    Source: librosa, ``power_to_db(feature.melspectrogram(y=y, ...), ref=1.0, top_db=None)``.
    """

    version: ClassVar[int] = 3
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
        super().__init__(name, sample_rate, mono=mono)
        self._bands = (sample_rate, n_fft, n_mels, fmin, fmax)
        self._hop_length = hop_length

    @classmethod
    def arguments(cls, section: Any, picture: PictureConfig) -> dict[str, Any]:
        """Return the section of the config, frequencies as float."""
        fmax = None if section.fmax is None else float(section.fmax)
        return {**super().arguments(section, picture), "fmin": float(section.fmin), "fmax": fmax}

    def begin(self, video: VideoInfo) -> str | None:
        """Prepare the tables. Return the reason why the feature is absent: the video has no audio track."""
        if video.has_sound:
            window, filters = window_and_filters(*self._bands)
            self._spectrogram = Spectrogram(window, filters, self._hop_length)
        return super().begin(video)

    def add_samples(self, pieces: Iterable[np.ndarray]) -> Rows:
        """Take pieces of the signal. Return rows in blocks."""
        return self._joined(self._blocks(pieces))

    def finish(self) -> Rows:
        """Return the last rows, and set the facts."""
        blocks = list(self._blocks(self._track.add(None)))
        if not self._track.num_samples:
            return NO_ROWS
        self.facts["start_seconds"] = self._track.start_seconds
        self.facts["row_seconds"] = self._hop_length / self._bands[0]
        self.facts["silence"] = SILENCE_DECIBELS
        if not self._mono:
            self.facts["num_channels"] = self._track.num_channels
        return self._joined([*blocks, *self._spectrogram.finish()])

    def _blocks(self, pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for samples in pieces:
            yield from self._spectrogram.add(samples)

    def _joined(self, blocks: Iterable[np.ndarray]) -> Rows:
        """Return blocks [shape=(C, n, n_mels)] as rows of the feature."""
        arrays = list(blocks)
        if not arrays:
            return NO_ROWS
        rows = np.concatenate(arrays, axis=1).swapaxes(0, 1)
        return {self.name: np.ascontiguousarray(rows[:, 0] if self._mono else rows)}


class MelReadSide(TimeLastReadSide):
    """The read side of mel [shape=(n_mels, t) or (C, n_mels, t), dtype=float32, dB]: time is last, as in librosa.

    A crop of the picture does not change it.
    """

    padding: ClassVar[Mapping[str, float]] = {"audio": SILENCE_DECIBELS}

    def read_clip(self, clip: Clip) -> Arrays:
        """Return ``audio`` from the earliest frame of the clip to the end of the latest."""
        return {"audio": clip.rows(self.name, slice(*clip.span))}

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays | None:
        """Return silence, or None if not mono: the number of channels of a missing track is unknown."""
        if not info.params["mono"]:
            return None
        row_seconds = info.params["hop_length"] / info.params["sample_rate"]
        num_rows = num_rows_in(clip.video.seconds_of(*clip.span), row_seconds)
        check_answer(f"'mel' of video '{clip.video.key}'", num_rows * info.params["n_mels"] * 4)
        return {"audio": np.full((info.params["n_mels"], num_rows), SILENCE_DECIBELS, np.float32)}


class Spectrogram:
    """A log-mel-spectrogram of a signal that comes in pieces, with half a window of silence at each end.

    ``window`` and ``filters`` are those of ``window_and_filters``. ``hop_length`` is 1 to n_fft [samples].
    """

    def __init__(self, window: np.ndarray, filters: Filters, hop_length: int) -> None:
        self._window, self._filters, self._hop_length = window, filters, hop_length
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0

    def add(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """Take samples [shape=(C, n), dtype=float32]. Yield blocks of rows [shape=(C, m, n_mels)] as they fill."""
        if not self._waiting:
            self._queue(self._silence(len(samples)))
        self._queue(samples)
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
        self._queue(signal[:, start:])

    def finish(self) -> Iterator[np.ndarray]:
        """Yield the remaining rows. Call it only after samples were added."""
        yield from self.add(self._silence(len(self._waiting[0])))
        if self._num_waiting >= len(self._window):
            yield self._rows(np.concatenate(self._waiting, axis=1))

    def _rows(self, signal: np.ndarray) -> np.ndarray:
        """Return each whole window of a signal [shape=(C, n), dtype=float32] as a row of bands [dtype=float32, dB].

        Samples that are not a number count as 0.
        """
        samples = np.nan_to_num(signal).clip(-MAX_AMPLITUDE, MAX_AMPLITUDE)
        windows = np.lib.stride_tricks.sliding_window_view(samples, len(self._window), axis=1)[:, :: self._hop_length]
        spectrum = np.fft.rfft(windows * self._window).astype(np.complex64)  # in float64 up to here, as in librosa
        power = np.square(np.abs(spectrum))
        # Compute each band alone and without BLAS: the last bits of BLAS depend on its number of threads
        bands = [np.einsum("...k,k->...", power[..., band], weights) for band, weights in self._filters]
        decibels: np.ndarray = 10 * np.log10(np.maximum(10 ** (SILENCE_DECIBELS / 10), np.stack(bands, axis=-1)))
        return decibels

    def _silence(self, num_channels: int) -> np.ndarray:
        return np.zeros((num_channels, len(self._window) // 2), np.float32)

    def _queue(self, samples: np.ndarray) -> None:
        self._waiting.append(samples)
        self._num_waiting += samples.shape[1]


@lru_cache(maxsize=4)
def window_and_filters(
    sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float | None
) -> tuple[np.ndarray, Filters]:
    """Return the window [shape=(n_fft,), dtype=float64] and the weights of each band. See ``MelExtractor``.

    librosa itself takes 0.7 s to import, in each worker. The tests compare both with librosa's.
    """
    bands = []
    for weights in mel_weights(sample_rate, n_fft, n_mels, fmin, fmax):
        used = np.flatnonzero(weights)
        band = slice(used[0], used[-1] + 1) if len(used) else slice(0, 0)
        bands.append((band, weights[band]))
    return hann_window(n_fft), tuple(bands)


def hann_window(num_samples: int) -> np.ndarray:
    """Return the periodic Hann window [shape=(num_samples,), dtype=float64, 0 to 1].

    Examples
    --------
    >>> hann_window(4).round(3).tolist()
    [0.0, 0.5, 1.0, 0.5]
    """
    angles = np.linspace(-np.pi, np.pi, num_samples + 1)[:-1]
    window: np.ndarray = 0.5 + 0.5 * np.cos(angles)
    return window


def mel_weights(sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float | None) -> np.ndarray:
    """Return the weight of each frequency in each band: triangles of area 1 over the frequencies in Hz.

    The result has [shape=(n_mels, 1 + n_fft // 2), dtype=float32]. A row is all zero if its band lies between two
    frequencies.

    Notes
    -----
    Source: ``librosa.filters.mel`` with its defaults, ``htk=False`` and ``norm="slaney"``.
    """
    limits = _mels(np.array([fmin, sample_rate / 2 if fmax is None else fmax], np.float64))
    edges = _hertz(np.linspace(limits[0], limits[1], n_mels + 2))
    widths = np.diff(edges)[:, None]
    ramps = edges[:, None] - np.fft.rfftfreq(n_fft, 1 / sample_rate)
    rising, falling = -ramps[:-2] / widths[:-1], ramps[2:] / widths[1:]
    # Round twice, as librosa does: the weights, then their multiples
    weights: np.ndarray = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    weights *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return weights


def _mels(hertz: np.ndarray) -> np.ndarray:
    """Return Slaney's mel scale: linear up to 1000 Hz, logarithmic above."""
    above = np.log(np.maximum(hertz, _LOG_HERTZ) / _LOG_HERTZ) / _LOG_STEP
    return np.where(hertz < _LOG_HERTZ, hertz / _HERTZ_PER_MEL, _LOG_MEL + above)


def _hertz(mels: np.ndarray) -> np.ndarray:
    above = _LOG_HERTZ * np.exp(_LOG_STEP * (np.maximum(mels, _LOG_MEL) - _LOG_MEL))
    return np.where(mels < _LOG_MEL, _HERTZ_PER_MEL * mels, above)
