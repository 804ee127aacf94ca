"""Batches of as many samples as fit into a budget: few long clips, or many short clips."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sized
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from chordcache.arguments import check_at_least
from chordcache.digests import digest64
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.samplers.distributed import ChordSampler, check_not_of_torch


class BudgetBatchSampler(DistributedSampler[list[tuple[int, int]]]):
    """Sampler of batches that need about the same memory, for any lengths and sizes of clips.

    Use it as the ``batch_sampler`` of a ``DataLoader``, or as the ``sampler`` of a ``ClipLoader`` or ``make_loader``
    without a batch size. ``collate`` pads each axis to the longest in the batch. The cost of a batch is therefore its
    number of samples times the product of its longest axes. It never exceeds the budget. A batch holds samples of
    similar shape: on each axis, the longest is less than 1.42 times the shortest. Videos of a cache with
    ``frames.buckets`` share a batch only if they are of one bucket, and their clips of one shape. Their frames are
    never padded.

    The batches of an epoch are formed from the sampler's order of all samples, and are distributed to the ranks in
    turn, the same number to each. With ``on_remainder="pad"`` the first batches are repeated, with ``"drop"`` the last
    are left out. The batches depend on the order and the samples only, not on the ranks. A run may therefore resume
    with another number of ranks.

    Samples are measured when their epoch is chosen, since a clip sampler may draw the length of a clip. They are
    measured from the catalog, not from the cached features.

    Parameters
    ----------
    dataset : ClipDataset
        The dataset of the samples.
    sampler : ChordSampler, optional
        The order, the ranks and the policy if the ranks do not divide the batches. By default shuffled, with seed 0.
        Do not use this sampler elsewhere afterwards.
    max_frames : int, optional
        Budget in frames, which the dataset's clip sampler chooses.
    max_pixels : int, optional
        Budget in pixels, frames x h x w, after ``size`` or ``crop``.
    max_tokens : int, optional
        Budget in caption tokens.
    max_latent_tokens : int, optional
        Budget in patches of latents, t x h x w, which a diffusion transformer takes as tokens. Give one of the four.
    tokenizer : CaptionTokenizer, optional
        Function that counts tokens. Only with ``max_tokens``.
    patch : tuple of int
        (t, h, w) of a patch [latents]. Only used with ``max_latent_tokens``.

    Raises
    ------
    UsageError
        If an argument is wrong, or a single sample exceeds the budget.

    Notes
    -----
    Frames and pixels are measured by columns of the catalog, 100,000 samples in about 0.1 s. This needs a dataset of a
    cache, a crop of chordcache, and a clip sampler with a method ``clip_shape``, see ``docs/loading.md``. All others
    take about 0.1 ms for each sample, in every epoch, and so do captions and latents. With an index, videos that are
    not cached are opened to be measured, which takes far longer. Build the cache first.

    Examples
    --------
    ::

        batches = BudgetBatchSampler(dataset, ChordSampler(dataset, seed=1), max_frames=256)
        loader = ClipLoader(dataset, None, sampler=batches)
    """

    def __init__(
        self,
        dataset: ClipDataset,
        sampler: ChordSampler | None = None,
        *,
        max_frames: int | None = None,
        max_pixels: int | None = None,
        max_tokens: int | None = None,
        max_latent_tokens: int | None = None,
        tokenizer: Callable[[str], Sized] | None = None,
        patch: tuple[int, int, int] = (1, 2, 2),
    ) -> None:
        budgets = {
            "max_frames": max_frames,
            "max_pixels": max_pixels,
            "max_tokens": max_tokens,
            "max_latent_tokens": max_latent_tokens,
        }
        given = {name: budget for name, budget in budgets.items() if budget is not None}
        if len(given) != 1:
            raise UsageError(f"{', '.join(budgets)}: got {', '.join(given) or 'none'}, expected one of them")
        check_at_least(1, **given)
        for side in patch:
            check_at_least(1, patch=side)
        if (tokenizer is None) != (max_tokens is None):
            raise UsageError("max_tokens and tokenizer: got one, expected both (such as a CaptionTokenizer) or none")
        check_not_of_torch(dataset)
        if sampler is not None and not isinstance(sampler, ChordSampler):
            raise UsageError(
                f"sampler: got a {type(sampler).__name__}, expected a ChordSampler, which takes the weights of samples "
                "as weights= and splits samples across ranks"
            )
        self._dataset = dataset
        self._sampler = ChordSampler(dataset) if sampler is None else sampler
        self._sampler.check_length(dataset)
        ((self._unit, self._budget),) = given.items()
        self._tokenizer = tokenizer
        self._patch = patch
        self._batches = self._formed(self._sampler)
        self._batch_order = self._sampler.of_batches(len(self._batches))

    def _formed(self, sampler: ChordSampler) -> _Batches:
        """Form the batches of a sampler's epoch."""
        epochs, order = sampler.draws()
        measures = self._dataset.measure(sampler.epoch, order) if self._unit in ("max_frames", "max_pixels") else None
        if measures is None:
            axes, kinds = self._described(epochs, order)
        else:
            axes = measures[:, 3:-2] if self._unit == "max_frames" else measures[:, 3:]
            kinds = _numbered(measures * (measures[:, :1] > 0))
        costs = _cost(axes)
        if costs.max() > self._budget:
            above = np.flatnonzero(costs > self._budget)
            place = above[np.argmin(order[above])]
            video, _ = self._dataset.describe((int(epochs[place]), int(order[place])))
            raise UsageError(
                f"{self._unit}: got {self._budget}, expected at least {costs[place]} for sample {order[place]} of "
                f"video '{video.key}'. Raise {self._unit}, or leave the video out of videos= or of the index."
            )
        return _Batches(epochs, order, *form_batches(axes, self._budget, kinds))

    def _described(self, epochs: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return axes and kind of each sample, which the dataset describes one by one."""
        axes: list[tuple[int, ...]] = [()] * len(order)
        kinds = np.zeros(len(order), np.int64)
        number_of_kind: dict[Hashable, int] = {None: 0}
        for place in np.argsort(order, kind="stable").tolist():  # neighbors in the catalog after one another
            sample = int(epochs[place]), int(order[place])
            video, shape = self._dataset.describe(sample)
            axes[place] = tuple(max(1, length) for length in self._axes_of(video, shape, sample))
            kind = None if video.bucket is None else (video.bucket, shape)
            kinds[place] = number_of_kind.setdefault(kind, len(number_of_kind))
        return np.array(list(zip_longest(*axes, fillvalue=0)), np.int64).T, kinds

    def _axes_of(self, video: Video, shape: tuple[int, ...], sample: tuple[int, int]) -> tuple[int, ...]:
        """Return the axes of a sample, from its video and the shape of its frames (T, h, w, 3)."""
        if self._tokenizer is not None:
            return (len(self._tokenizer(video.caption or "")),)
        if self._unit == "max_latent_tokens":
            *clips, t, _, h, w = self._dataset.latents_shape(sample)
            return (*clips, *(-(-length // side) for length, side in zip((t, h, w), self._patch, strict=True)))
        return shape[:-3] if self._unit == "max_frames" else shape[:-1]

    def check_length(self, dataset: Sized) -> None:
        """Raise ``UsageError`` if a dataset has another number of samples."""
        self._sampler.check_length(dataset)

    @property
    def sampler(self) -> BudgetBatchSampler:
        """The sampler itself: Lightning and accelerate call ``set_epoch`` of the ``sampler`` of a batch sampler."""
        return self

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """Epoch of this pass, or of the first one if none has begun."""
        return self._sampler.epoch

    @property
    def next_epoch(self) -> int:
        """Epoch of the pass that begins next."""
        return self._batch_order.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, and form its batches now. See ``ChordSampler.set_epoch``."""
        copy.copy(self._batch_order).set_epoch(epoch)  # raises for an epoch before that of a loaded state
        if epoch != self.epoch:
            sampler = self._sampler.at_epoch(epoch)
            self._batches = self._formed(sampler)  # if this raises, nothing has changed
            self._sampler, self._batch_order = sampler, sampler.of_batches(len(self._batches))
        self._batch_order.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch. It may differ a little between epochs."""
        return len(self._batch_order)

    @property
    def num_left(self) -> int:
        """Number of batches of this rank in this pass, or in the first one. See ``ClipLoader.num_batches_left``."""
        return self._batch_order.num_left

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the batches of a pass, which begins at the first of them. See ``ChordSampler``."""
        if self.next_epoch != self.epoch:
            self.set_epoch(self.next_epoch)
        batches = self._batches
        for _, number in self._batch_order:
            yield batches[number]

    def state_dict(self, num_batches_consumed: int | None = None) -> dict[str, Any]:
        """Return the position of the run as plain data. See ``ChordSampler.state_dict``."""
        return {
            **self._sampler.state_dict(0),
            "num_consumed": self._batch_order.state_dict(num_batches_consumed)["num_consumed"],
            "batches": self._batches.digest(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a run. The next pass covers the remaining batches of its epoch.

        Raises ``UsageError`` if ``state`` is not such a state, or belongs to other batches: other samples, seed or
        budget.
        """
        if "batches" not in state:
            raise UsageError(
                f"state: got keys {', '.join(map(str, state)) or 'none'}, expected the state of a BudgetBatchSampler"
            )
        sampler = copy.copy(self._sampler)
        sampler.load_state_dict({name: value for name, value in state.items() if name != "batches"})
        batches = self._formed(sampler)
        if state["batches"] != batches.digest():
            raise UsageError(
                f"state: got one of other batches, expected {self._unit}={self._budget} and the same samples. "
                "Make the sampler and the dataset as they were."
            )
        self._sampler, self._batches, self._batch_order = sampler, batches, sampler.of_batches(len(batches))
        self._batch_order.load_state_dict({**self._batch_order.state_dict(0), "num_consumed": state["num_consumed"]})


@dataclass(frozen=True)
class _Batches:
    """The batches of an epoch."""

    epochs: np.ndarray
    """[shape=(num_samples,), dtype=int64] epoch of each sample, in the order of the epoch"""
    order: np.ndarray
    """[shape=(num_samples,), dtype=int64] index of each sample, in the order of the epoch"""
    places: np.ndarray
    """[shape=(num_samples,), dtype=int64] positions in the order, of the samples of one batch after the other"""
    stops: np.ndarray
    """[shape=(num_batches,), dtype=int64] end of each batch in ``places``"""

    def __len__(self) -> int:
        return len(self.stops)

    def __getitem__(self, number: int) -> list[tuple[int, int]]:
        places = self.places[self.stops[number - 1] if number else 0 : self.stops[number]]
        return list(zip(self.epochs[places].tolist(), self.order[places].tolist(), strict=True))

    def digest(self) -> int:
        """Return a hash of the samples of all batches."""
        starts = np.r_[0, self.stops[:-1]]
        numbers = np.insert(self.order[self.places], starts, self.stops - starts)
        return digest64(numbers.astype("<i8").tobytes())


def form_batches(axes: np.ndarray, budget: int, kinds: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Put samples into batches of similar shape, each as large as the budget allows.

    The samples come in their order. Each is put into the open batch of its kind and of the ranges of its lengths, or
    opens a new one if that batch would exceed the budget.

    Parameters
    ----------
    axes : np.ndarray [shape=(n, k), dtype=int64]
        Lengths of each sample that the budget counts. Their product is the cost of a single sample, which must not
        exceed the budget. 0 stands for an axis that the sample does not have.
    budget : int
        Largest number of samples times the product of the longest axes in a batch.
    kinds : np.ndarray, optional [shape=(n,), dtype=int64, in [0, n]]
        Number of each sample's kind. Samples of different kinds do not share a batch.

    Returns
    -------
    np.ndarray, np.ndarray [shape=(n,) and (num_batches,), dtype=int64]
        Samples of one batch after the other, and the end of each batch there. Batches are in the order of their first
        samples.

    Examples
    --------
    >>> samples, stops = form_batches(np.array([[12], [30], [13], [14], [30]]), budget=60)
    >>> samples.tolist(), stops.tolist()
    ([0, 2, 3, 1, 4], [3, 5])
    """
    alike = np.zeros(len(axes), np.int64) if kinds is None else kinds
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
    largest = min(int((group_ends - places).max()), budget // int(_cost(axes).min()))
    longest = [axes]
    while 2 ** len(longest) <= largest:
        after = np.minimum(places + 2 ** (len(longest) - 1), len(axes) - 1)
        longest.append(np.maximum(longest[-1], longest[-1][after]))
    ends, own = places.copy(), np.zeros_like(axes)
    for level in reversed(range(len(longest))):
        grown_ends = ends + 2**level
        grown = np.maximum(own, longest[level][np.minimum(ends, len(axes) - 1)])
        fits = (grown_ends <= group_ends) & ((grown_ends - places) * _cost(grown) <= budget)
        ends[fits], own[fits] = grown_ends[fits], grown[fits]
    return ends


def _cost(axes: np.ndarray) -> np.ndarray:
    """Return the product of the lengths of each sample, without those that are 0."""
    product: np.ndarray = np.maximum(axes, 1).prod(axis=1)
    return product


def _numbered(rows: np.ndarray) -> np.ndarray:
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
