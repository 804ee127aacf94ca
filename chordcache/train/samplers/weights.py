"""Weights of samples, and reproducible draws by them."""

from __future__ import annotations

from typing import Any

import numpy as np

from chordcache.amounts import counted
from chordcache.errors import UsageError

BALANCED = "balanced"


def checked_weights(weights: Any, dataset: Any, num_in_dataset: int) -> np.ndarray | None:
    """Return the weights that a sampler draws by [shape=(num_in_dataset,), dtype=float64], None if there are none.

    ``weights`` are a number for each sample, "balanced" for equal shares of all classes, or None for the dataset's own.
    Raises ``UsageError`` if they are something else, or a dataset to balance does not have one label for each sample.
    """
    if weights is None:
        weights = getattr(dataset, "sample_weights", None)
        if weights is None:
            return None
    if isinstance(weights, str):
        if weights != BALANCED:
            raise UsageError(f"weights: got {weights!r}, expected '{BALANCED}', a number for each sample, or None")
        label_ids = getattr(dataset, "label_ids", None)
        if label_ids is None:
            raise UsageError(
                f"weights: got '{BALANCED}' for a dataset without label_ids, expected a dataset of chordcache. Give a "
                "number for each sample."
            )
        if "labels" in getattr(dataset, "fields", {}):
            raise UsageError(
                f"weights: got '{BALANCED}' for a dataset with the field 'labels', expected one label for each sample. "
                "A sample of several classes does not have one share. Give a number for each sample."
            )
        return balanced_weights(label_ids)
    try:
        checked = np.array(weights, np.float64)
    except (TypeError, ValueError):
        checked = np.empty(0)
    if checked.shape != (num_in_dataset,):
        raise UsageError(
            f"weights: got {type(weights).__name__} of shape {np.shape(checked)}, expected '{BALANCED}', or "
            f"{num_in_dataset} numbers as the dataset has samples"
        )
    check_weights(checked)
    return checked


def check_weights(weights: np.ndarray) -> None:
    """Raise ``UsageError`` if weights are not finite numbers of at least 0 with a finite sum above 0."""
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise UsageError(f"weights: got {weights[place]} at position {place}, expected finite numbers of at least 0")
    if not 0 < weights.sum() < np.inf:
        raise UsageError(f"weights: got a sum of {weights.sum()}, expected a finite number above 0")


def balanced_weights(label_ids: np.ndarray) -> np.ndarray:
    """Return weights by which each class that has samples is drawn with equal probability.

    ``label_ids`` [shape=(n,), dtype=int64] is the class of each sample. -1, without a label, raises ``UsageError``.

    Examples
    --------
    >>> balanced_weights(np.array([0, 2, 2, 0, 2, 2])).tolist()
    [0.5, 0.25, 0.25, 0.5, 0.25, 0.25]
    """
    num_without = int(np.count_nonzero(label_ids < 0))
    if num_without:
        raise UsageError(
            f"weights: got '{BALANCED}' for {counted(num_without, 'sample')} without a label, expected a label for "
            "each sample. Leave them out by subset(dataset, numpy.flatnonzero(dataset.label_ids >= 0))."
        )
    weights: np.ndarray = 1 / np.bincount(label_ids)[label_ids]
    return weights


def draw(weights: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Draw positions [shape=(m,), dtype=int64] with replacement, each with a probability in proportion to its weight.

    The result is the same with any release of numpy. A position of weight 0 is never drawn. ``bits`` [shape=(m,),
    dtype=uint64] are uniform random bits.

    Examples
    --------
    >>> draw(np.array([0, 1, 3, 0]), np.array([0, 2**62 - 1, 2**62, 2**64 - 1], np.uint64)).tolist()
    [1, 1, 2, 2]
    """
    ends = np.cumsum(weights, dtype=np.float64)
    ends /= ends[-1]
    uniform = (bits >> np.uint64(11)) * 2.0**-53  # in [0, 1): a double has 53 bits
    return np.searchsorted(ends, uniform, side="right").astype(np.int64, copy=False)


def num_earlier(numbers: np.ndarray) -> np.ndarray:
    """Return for each number how many of the earlier ones are equal to it [same shape, dtype=int64].

    Examples
    --------
    >>> num_earlier(np.array([5, 3, 5, 5, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    by_number = np.argsort(numbers, kind="stable")
    ascending = numbers[by_number]
    is_first = np.r_[True, ascending[1:] != ascending[:-1]]
    places = np.arange(len(numbers))
    counts = np.empty(len(numbers), np.int64)
    counts[by_number] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return counts
