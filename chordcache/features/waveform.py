"""The feature "waveform": the samples of the audio track, in blocks. A clip reads only the blocks of its seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np

from chordcache.features.base import NO_ROWS, Rows, SoundExtractor
from chordcache.features.mel import MAX_AMPLITUDE
from chordcache.features.read_side import Arrays, Clip, ReadSide, num_rows_in, rows_from
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.opener import check_answer

BLOCK_SAMPLES = 4096
"""Number of samples of a row, of one channel. Clips of 0.5 s at 16 kHz take the least CPU time with 4096: 37 us in an
open file, against 62 with 256, 42 with 16384 and 64 with 65536."""

_ROWS_AT_ONCE = 16
"""Number of rows that are made together. It does not change the result."""

_MAX_ROWS = 16 * _ROWS_AT_ONCE
"""Most rows that ``add_sound`` returns. A gap of minutes comes in one piece. Its rows leave with the sound after it.
This bounds the memory."""

_FULL_SCALE = 32768
"""Value of an int16 sample at full scale, where a float32 sample is 1. A sample of 1 becomes 32767."""


class WaveformExtractor(SoundExtractor):
    """Samples of the audio track, at one rate, as float32 or int16.

    Arrays
    ------
    ``name`` [shape=(n, 4096), or (n, C, 4096) with all channels, dtype=float32 or int16], blocks of samples. Zeros fill
    the last block up. A float32 sample is 1 at full scale, and may be larger. An int16 sample is the same times 32768,
    rounded to the nearest integer, halves to the even one, and clipped to -32768 to 32767.

    Facts: ``start_seconds`` is the time of the first sample on the clock of the video. ``sample_rate`` is the rate of
    the samples [Hz]. ``num_samples`` is their number, of one channel. ``row_seconds`` is the length of a block.
    ``silence`` is 0. ``num_channels`` is set with all channels. For int16, ``clipped_share`` is the share of samples
    that were clipped, 0 to 1.

    Sample i is at ``start_seconds + i / sample_rate``. Gaps, overlaps and wrong timestamps are as in mel: see
    ``MelExtractor``. Samples that are not a number count as 0.

    The parameters are the settings of ``WaveformConfig``. libswresample resamples the track, and mixes all channels
    down. A ``sample_rate`` of None, and ``channels`` of "all", keep what the first sound has.
    """

    version: ClassVar[int] = 2
    units: ClassVar[Mapping[str, str]] = {"": "full scale, which is 1 in float32 and 32768 in int16"}

    def __init__(
        self, name: str, *, sample_rate: int | None = 16000, dtype: str = "float32", channels: str = "mono"
    ) -> None:
        super().__init__(name, sample_rate, mono=channels == "mono")
        self._dtype = np.dtype(dtype)
        self._waiting: deque[np.ndarray] = deque()
        self._num_waiting = 0
        self._num_clipped = 0

    def add_samples(self, pieces: Iterable[np.ndarray]) -> Rows:
        """Take pieces of the signal. Return rows, several at a time."""
        self._queue(pieces)
        num_rows = self._num_waiting // BLOCK_SAMPLES
        return self._rows(min(num_rows - num_rows % _ROWS_AT_ONCE, _MAX_ROWS))

    def finish(self) -> Rows:
        """Return the last rows, and set the facts."""
        self._queue(self._track.add(None))
        track = self._track
        if not track.num_samples or track.sample_rate is None:
            return NO_ROWS
        self._queue([np.zeros((track.num_channels, -self._num_waiting % BLOCK_SAMPLES), np.float32)])
        rows = self._rows(self._num_waiting // BLOCK_SAMPLES)
        self.facts["start_seconds"] = track.start_seconds
        self.facts["row_seconds"] = BLOCK_SAMPLES / track.sample_rate
        self.facts["silence"] = 0
        self.facts["sample_rate"] = track.sample_rate
        self.facts["num_samples"] = track.num_samples
        if not self._mono:
            self.facts["num_channels"] = track.num_channels
        if self._dtype == np.int16:
            self.facts["clipped_share"] = self._num_clipped / (track.num_samples * track.num_channels)
        return rows

    def _queue(self, pieces: Iterable[np.ndarray]) -> None:
        for samples in pieces:
            self._waiting.append(samples)
            self._num_waiting += samples.shape[1]

    def _rows(self, num_rows: int) -> Rows:
        """Return the next rows, of the samples that wait. Rows of silence are not written, and take no memory."""
        if not num_rows:
            return NO_ROWS
        num_channels = self._track.num_channels
        rows = np.zeros((num_rows, num_channels, BLOCK_SAMPLES), self._dtype)
        for first in range(0, num_rows, _ROWS_AT_ONCE):
            some = rows[first : first + _ROWS_AT_ONCE]
            signal = self._cut(len(some) * BLOCK_SAMPLES)
            low, high = float(signal.min()), float(signal.max())  # either is NaN if a sample is
            if not low == high == 0:
                samples = self._converted(signal, low, high)
                some[...] = samples.reshape(num_channels, -1, BLOCK_SAMPLES).swapaxes(0, 1)
        return {self.name: rows[:, 0] if self._mono else rows}

    def _cut(self, num_samples: int) -> np.ndarray:
        """Remove the first of the samples that wait, and return them [shape=(C, num_samples), dtype=float32]."""
        pieces: list[np.ndarray] = []
        self._num_waiting -= num_samples
        while num_samples:
            piece = self._waiting.popleft()
            if piece.shape[1] > num_samples:
                self._waiting.appendleft(piece[:, num_samples:])
            pieces.append(piece[:, :num_samples])
            num_samples -= pieces[-1].shape[1]
        return np.concatenate(pieces, axis=1)

    def _converted(self, signal: np.ndarray, low: float, high: float) -> np.ndarray:
        """Return samples from ``low`` to ``high`` in the dtype of the feature, and count those that are clipped."""
        if not (low >= -MAX_AMPLITUDE and high <= MAX_AMPLITUDE):
            signal = np.nan_to_num(signal).clip(-MAX_AMPLITUDE, MAX_AMPLITUDE)
        if self._dtype == np.float32:
            return signal
        limits = np.iinfo(self._dtype)
        values = np.rint(signal * np.float32(_FULL_SCALE))
        if not (low * _FULL_SCALE >= limits.min and high * _FULL_SCALE <= limits.max):
            self._num_clipped += int(np.count_nonzero((values < limits.min) | (values > limits.max)))
            values = values.clip(limits.min, limits.max)
        return values.astype(self._dtype)


class WaveformReadSide(ReadSide):
    """The read side of waveform: time is last, as in mel. A crop of the picture does not change it."""

    padding: ClassVar[Mapping[str, float]] = {"waveform": 0}

    def rows_in(
        self, artefact: Artefact, info: FeatureInfo, array: str, span: tuple[float, float], out: np.ndarray | None
    ) -> np.ndarray:
        """Read samples [shape=(t,) or (C, t)], of the blocks that overlap with the span. See ``ReadSide``.

        The first sample is the first at or after the span's start. Their number is ``num_rows_in(span, 1 / rate)``.
        """
        wanted = rows_from(span, info.facts["start_seconds"], 1 / info.facts["sample_rate"])
        num_samples, block_samples = info.facts["num_samples"], info.shape[-1]
        begin, end = min(max(wanted.start, 0), num_samples), min(max(wanted.stop, 0), num_samples)
        first_block = begin // block_samples
        blocks = artefact.rows(array, range(first_block, -(-end // block_samples) if begin < end else first_block))
        channels = blocks.shape[1:-1]
        there = np.moveaxis(blocks, 0, -2).reshape(*channels, len(blocks) * block_samples)
        samples = artefact.memory_for(array, (*channels, len(wanted)), blocks.dtype, out)
        samples[...] = 0
        skipped = first_block * block_samples
        if begin < end:
            samples[..., begin - wanted.start : end - wanted.start] = there[..., begin - skipped : end - skipped]
        return samples

    def zeros(self, clip: Clip, info: FeatureInfo) -> Arrays | None:
        """Return zeros. Return None with all channels, or with the rate of the track: both are unknown without one."""
        params = info.params
        if params["channels"] != "mono" or params["sample_rate"] is None:
            return None
        num_samples = num_rows_in(clip.video.seconds_of(*clip.span), 1 / params["sample_rate"])
        check_answer(f"'waveform' of video '{clip.video.key}'", num_samples * 4)
        return {self.name: np.zeros(num_samples, params["dtype"])}
