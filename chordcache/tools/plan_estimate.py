"""Totals of a population from measurements of a sample, each with a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from chordcache.tools.plan_units import Sample

_MAX_DRIVERS = 3
_UNITS_PER_DRIVER = 6
"""Number of measured files for each number that is fitted to them"""

_LEAST_GAIN = 0.9
"""A further driver must reduce the error of the fit to less than this part of it"""

DEVIATIONS = 1.2816
"""Standard deviations from the 10th to the 50th percentile, and from there to the 90th"""


@dataclass(frozen=True)
class Estimate:
    """An estimate with the range from the 10th to the 90th percentile."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of a multiple."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    @classmethod
    def of(cls, value: float, deviation: float) -> Estimate:
        """Return the estimate with a standard deviation. A low end below zero is zero."""
        half = DEVIATIONS * deviation
        return cls(value, max(0.0, value - half), value + half)


def total(drivers: np.ndarray, work: np.ndarray, sample: Sample, measured: np.ndarray, errors: np.ndarray) -> Estimate:
    """Estimate the sum of a quantity over all files.

    A sum of drivers with non-negative factors is fitted to the sample. The estimate is its total, corrected by what the
    sample has beyond the fit. If all files are in the sample, it is their sum.

    Parameters
    ----------
    drivers : np.ndarray [shape=(N, k), dtype=float64]
        Known numbers of all files.
    work : np.ndarray [shape=(N,), dtype=float64]
        Share of each file. The error of a fit grows with its root.
    sample : Sample
        The sample.
    measured, errors : np.ndarray [shape=(n,), dtype=float64]
        The quantity for each file of the sample, and the standard error of files that were measured in part.

    Notes
    -----
    Source: the difference estimator and its variance for stratified samples, Sarndal, Swensson and Wretman, "Model
    Assisted Survey Sampling", 1992, sections 6.3 and 3.7.
    """
    used = drivers[sample.positions]
    factors = _fit(used, measured, np.sqrt(work[sample.positions]))
    beyond = measured - used @ factors
    value = float((drivers @ factors).sum() + sample.weights @ beyond)
    value = max(value, float(measured.sum()))
    freedom = len(measured) / max(1, len(measured) - int(np.count_nonzero(factors)))
    variance = freedom * _variance(sample, beyond) + float(sample.weights @ errors**2)
    return Estimate.of(value, variance**0.5)


def _variance(sample: Sample, beyond: np.ndarray) -> float:
    variance = 0.0
    for number in np.unique(sample.strata):
        inside = sample.strata == number
        values, num_files = beyond[inside], float(sample.weights[inside].sum())
        if num_files > len(values):
            spread = float(np.var(values, ddof=1)) if len(values) > 1 else float(values[0] ** 2)
            variance += num_files**2 * (1 - len(values) / num_files) * spread / len(values)
    return variance


def _fit(drivers: np.ndarray, measured: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the non-negative factors of a few drivers with the least error [shape=(k,), dtype=float64]."""
    best, least = np.zeros(drivers.shape[1]), float("inf")
    known = [column for column in range(drivers.shape[1]) if drivers[:, column].any()]
    for num_used in range(1, min(_MAX_DRIVERS, max(1, len(measured) // _UNITS_PER_DRIVER)) + 1):
        factors, error = _best_of(combinations(known, num_used), drivers, measured, scale)
        if error < least * (_LEAST_GAIN if num_used > 1 else 1.0):
            best, least = factors, error
    return best


def _best_of(
    choices: combinations[tuple[int, ...]], drivers: np.ndarray, measured: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, float]:
    best, least = np.zeros(drivers.shape[1]), float("inf")
    for columns in choices:
        scaled = drivers[:, columns] / scale[:, None]
        factors = np.linalg.lstsq(scaled, measured / scale, rcond=None)[0]
        error = float(np.sum((scaled @ factors - measured / scale) ** 2))
        if error < least and np.all(factors >= 0):
            least = error
            best = np.zeros(drivers.shape[1])
            best[list(columns)] = factors
    return best, least


def ratio(weights: Sequence[float], before: Sequence[float], after: Sequence[float]) -> float:
    """Return the change of a total that the same files show, measured before and after."""
    return float(np.dot(weights, after)) / max(float(np.dot(weights, before)), 1e-12)
