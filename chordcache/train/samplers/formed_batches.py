"""The batches of an epoch: samples of similar shape, as many as a budget allows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chordcache.digests import digest64


@dataclass(frozen=True)
class FormedBatches:
    """The batches of an epoch. All arrays are of int64."""

    epochs: np.ndarray
    """[shape=(num_samples,)] epoch of each sample, in the order of the epoch"""
    order: np.ndarray
    """[shape=(num_samples,)] index of each sample, in the order of the epoch"""
    places: np.ndarray
    """[shape=(num_samples,)] positions in the order, of the samples of one batch after the other"""
    stops: np.ndarray
    """[shape=(num_batches,)] end of each batch in ``places``"""

    def __len__(self) -> int:
        return len(self.stops)

    @property
    def starts(self) -> np.ndarray:
        """[shape=(num_batches,), dtype=int64] beginning of each batch in ``places``."""
        starts: np.ndarray = np.r_[0, self.stops[:-1]]
        return starts

    def __getitem__(self, number: int) -> list[tuple[int, int]]:
        places = self.places[self.stops[number - 1] if number else 0 : self.stops[number]]
        return list(zip(self.epochs[places].tolist(), self.order[places].tolist(), strict=True))

    def digest(self) -> int:
        """Return a hash of the samples of all batches."""
        numbers = np.insert(self.order[self.places], self.starts, self.stops - self.starts)
        return digest64(numbers.astype("<i8").tobytes())


def form_batches(axes: np.ndarray, budget: int, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put samples into batches of similar shape, each as large as the budget allows.

    The samples come in their order. Each is put into the open batch of its kind and of the ranges of its lengths, or
    opens a new one if that batch would exceed the budget: the largest number of samples times the product of the
    longest axes in a batch. ``axes`` [shape=(n, k), dtype=int64] are the lengths of each sample that the budget counts.
    0 stands for an axis that the sample does not have. No single sample exceeds the budget. ``kinds`` [shape=(n,),
    dtype=int64, in [0, n]] number the samples that may share a batch.

    Returns the samples of one batch after the other [shape=(n,)], and the end of each batch there
    [shape=(num_batches,)]. Batches are in the order of their first samples.

    Examples
    --------
    >>> samples, stops = form_batches(np.array([[12], [30], [13], [14], [30]]), 60, np.zeros(5, np.int64))
    >>> samples.tolist(), stops.tolist()
    ([0, 2, 3, 1, 4], [3, 5])
    """
    alike = kinds
    for lengths in axes.T:
        alike = alike * 64 + _half_octaves(lengths)
    by_group = np.argsort(alike, kind="stable")
    in_groups = alike[by_group]
    ends = _batch_ends(axes[by_group], np.searchsorted(in_groups, in_groups, side="right"), budget).tolist()
    starts = [0]
    while ends[starts[-1]] < len(ends):
        starts.append(ends[starts[-1]])
    firsts = np.array(starts)
    sizes = np.diff(firsts, append=len(ends))
    by_first = np.argsort(by_group[firsts])
    stops = np.cumsum(sizes[by_first])
    shifts = firsts[by_first] - stops + sizes[by_first]
    return by_group[np.repeat(shifts, sizes[by_first]) + np.arange(len(ends))], stops


def _batch_ends(axes: np.ndarray, group_ends: np.ndarray, budget: int) -> np.ndarray:
    """Return for each sample the end of the batch that begins with it.

    A batch grows by half as many samples from step to step, if it then still fits. ``longest[i]`` has the longest axes
    of the ``2 ** i`` samples from each one on.
    """
    places = np.arange(len(axes))
    largest = min(int((group_ends - places).max()), budget // int(cost_of(axes).min()))
    longest = [axes]
    while 2 ** len(longest) <= largest:
        after = np.minimum(places + 2 ** (len(longest) - 1), len(axes) - 1)
        longest.append(np.maximum(longest[-1], longest[-1][after]))
    ends, own = places.copy(), np.zeros_like(axes)
    for level in reversed(range(len(longest))):
        grown_ends = ends + 2**level
        grown = np.maximum(own, longest[level][np.minimum(ends, len(axes) - 1)])
        fits = (grown_ends <= group_ends) & ((grown_ends - places) * cost_of(grown) <= budget)
        ends[fits], own[fits] = grown_ends[fits], grown[fits]
    return ends


def cost_of(axes: np.ndarray) -> np.ndarray:
    """Return the product of the lengths of each sample, without those that are 0."""
    product: np.ndarray = np.maximum(axes, 1).prod(axis=1)
    return product


def number_rows(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row, the same for equal rows."""
    if not rows.any():
        return np.zeros(len(rows), np.int64)
    _, numbers = np.unique(rows, axis=0, return_inverse=True)
    return np.asarray(numbers, np.int64)


def _half_octaves(lengths: np.ndarray) -> np.ndarray:
    """Return the range of each length. Its longest length is less than the square root of 2 times its shortest.

    The ranges are 1, 2, 3, 4 to 5, 6 to 7, 8 to 11, 12 to 15, 16 to 22 ...
    """
    _, exponents = np.frexp(np.square(lengths, dtype=np.float64))
    return np.asarray(exponents, np.int64)
