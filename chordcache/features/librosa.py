"""The feature "librosa": any function of librosa that turns a signal into columns, one for each hop."""

from __future__ import annotations

import importlib.metadata
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from chordcache.errors import UsageError
from chordcache.features.base import NO_ROWS, Rows, SoundExtractor, missing_package
from chordcache.features.mel import MAX_AMPLITUDE
from chordcache.features.read_side import TimeLastReadSide


class LibrosaExtractor(SoundExtractor):
    """Result of a function of librosa for the whole audio track, mixed to one channel.

    Arrays
    ------
    ``name`` [shape=(n, ...), dtype=float32 or float64], the result of the function with its last axis, time, first.

    Facts: ``start_seconds`` is the time of the first sample on the clock of the video. ``row_seconds`` is the time from
    one row to the next. ``silence`` is 0, the value of rows outside of the track.

    Row j is centered on ``start_seconds + j * hop_length / sample_rate``. Gaps, overlaps and wrong timestamps are as in
    mel: see ``MelExtractor``. Samples that are not a number count as 0. The signal is in memory as a whole, 320 MB an
    hour at 22,050 Hz.

    The parameters are the settings of ``LibrosaConfig``. The function must take ``y`` and ``hop_length``, and return
    one array of floats with a column for each hop. libswresample resamples the track.

    Notes
    -----
    Source: librosa, ``function(y=y, sr=sample_rate, hop_length=hop_length, **params)``.
    """

    def __init__(
        self,
        name: str,
        *,
        function: str = "feature.mfcc",
        sample_rate: int = 22050,
        hop_length: int = 512,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(name, sample_rate, mono=True)
        self._row_seconds = hop_length / sample_rate
        self._pieces: list[np.ndarray] = []

    @classmethod
    def identity(cls, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments and the version of librosa, whose functions change from one to the next."""
        is_installed = cls.missing_requirement(arguments) is None
        return {**arguments, "librosa": importlib.metadata.version("librosa") if is_installed else None}

    @classmethod
    def missing_requirement(cls, arguments: Mapping[str, Any]) -> str | None:
        """Return the command that installs librosa."""
        return missing_package("build", "librosa")

    @classmethod
    def setup(cls, device: str, **arguments: Any) -> Callable[..., np.ndarray]:
        """Import librosa and try the function on a second of noise, which also compiles what librosa compiles.

        Raise ``UsageError`` if it does not take the parameters, or does not return a column for each hop.
        """
        import librosa  # in the worker that needs it: the import takes most of a second

        name, rate, hop_length = arguments["function"], arguments["sample_rate"], arguments["hop_length"]
        try:
            function = attrgetter(name)(librosa)
        except AttributeError:
            function = None
        is_own = callable(function) and str(getattr(function, "__module__", "")).startswith("librosa.")
        names = inspect.signature(function).parameters.keys() if is_own else ()
        if "y" not in names or not {"hop_length", "kwargs"} & {*names}:
            raise UsageError(
                f"features.librosa.function: got '{name}', expected a function of librosa with the parameters y and "
                "hop_length, such as feature.mfcc, feature.chroma_stft or onset.onset_strength"
            )
        rated = {"sr": rate} if "sr" in names else {}
        function = partial(function, hop_length=hop_length, **rated, **(arguments["params"] or {}))
        noise = np.random.default_rng(0).standard_normal(rate).astype(np.float32)
        try:
            columns = _result(function, noise)
        except Exception as error:  # librosa raises its own errors, and those of NumPy and SciPy
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(f"features.librosa.params: librosa.{name} does not take them: {what}") from error
        if (
            getattr(columns, "dtype", None) not in (np.float32, np.float64)
            or columns.shape[-1] != 1 + rate // hop_length
        ):
            raise UsageError(
                f"features.librosa.function: got '{name}', whose result has another form, expected one array of floats "
                "with a column for each hop"
            )
        return function

    def add_samples(self, pieces: Iterable[np.ndarray]) -> Rows:
        """Keep pieces of the signal. All rows come at the end."""
        self._pieces += [samples[0] for samples in pieces]
        return NO_ROWS

    def finish(self) -> Rows:
        """Return all rows, and set the facts."""
        self.add_samples(self._track.add(None))
        if not self._track.num_samples:
            return NO_ROWS
        signal = np.nan_to_num(np.concatenate(self._pieces)).clip(-MAX_AMPLITUDE, MAX_AMPLITUDE)
        self.facts |= {"start_seconds": self._track.start_seconds, "row_seconds": self._row_seconds, "silence": 0}
        return {self.name: np.ascontiguousarray(np.moveaxis(_result(self.model, signal), -1, 0))}


def _result(function: Callable[..., np.ndarray], signal: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings(action="ignore"):  # such as for a signal that is shorter than a window
        return function(y=signal)


class LibrosaReadSide(TimeLastReadSide):
    """The read side of librosa: time is last, as in librosa. A crop of the picture does not change it."""

    padding: ClassVar[Mapping[str, float]] = {"librosa": 0}
