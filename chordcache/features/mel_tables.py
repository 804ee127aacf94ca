"""The two tables of a mel spectrogram, with the numbers of librosa: the Hann window and the bands on Slaney's scale.

librosa itself takes 0.7 s to import, in each worker. The tests compare the tables with librosa's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np

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


@lru_cache(maxsize=4)
def window_and_filters(
    sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float | None
) -> tuple[np.ndarray, Filters]:
    """Return the window [shape=(n_fft,), dtype=float64] and the weights of each band. See ``MelExtractor``."""
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
