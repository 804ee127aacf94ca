"""The tables of mel, against librosa's."""

from __future__ import annotations

import librosa
import numpy as np
import pytest

from chordcache.features.mel import hann_window, mel_weights, window_and_filters

RELATIVE = 1e-7
"""Between two releases of librosa; measured: 0, for 1,500 random settings."""


@pytest.mark.filterwarnings("ignore:Empty filters detected:UserWarning")
@pytest.mark.parametrize(
    ("sample_rate", "n_fft", "n_mels", "fmin", "fmax"),
    [
        (16000, 400, 80, 0.0, None),
        (22050, 2048, 128, 0.0, None),
        (44100, 1024, 40, 50.0, 8000.0),
        (48000, 2048, 229, 30.0, 16000.0),
        (8000, 255, 20, 0.0, 4000.0),  # an odd length
        (16000, 512, 64, 1000.0, 8000.0),  # all of the scale logarithmic
        (16000, 1024, 10, 0.0, 1000.0),  # all of it linear
        (96000, 256, 51, 0.0, None),  # its last edge is at half of the rate, but for rounding
        (1000, 16, 1, 0.0, None),
        (16000, 400, 201, 0.0, None),  # bands between two frequencies
    ],
)
def test_tables_are_librosas(sample_rate: int, n_fft: int, n_mels: int, fmin: float, fmax: float | None) -> None:
    expected = librosa.filters.mel(sr=sample_rate, n_fft=n_fft, n_mels=n_mels, fmin=fmin, fmax=fmax)
    weights = mel_weights(sample_rate, n_fft, n_mels, fmin, fmax)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, rtol=RELATIVE, atol=RELATIVE * expected.max())
    window = librosa.filters.get_window("hann", n_fft, fftbins=True)
    np.testing.assert_allclose(hann_window(n_fft), window, rtol=RELATIVE, atol=RELATIVE)
    own_window, filters = window_and_filters(sample_rate, n_fft, n_mels, fmin, fmax)
    np.testing.assert_array_equal(own_window, hann_window(n_fft))
    dense = np.zeros_like(weights)
    for row, (band, values) in zip(dense, filters, strict=True):
        row[band] = values
    np.testing.assert_array_equal(dense, weights)
