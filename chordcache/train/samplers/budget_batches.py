"""Batches of as many samples as fit into a budget: few long clips, or many short clips."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sized
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.utils.data.distributed import DistributedSampler

from chordcache.arguments import check_at_least, names_arguments
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.train.batches import Collate
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.collate import collate
from chordcache.train.samplers.distributed import ChordSampler, check_not_of_torch
from chordcache.train.samplers.formed_batches import FormedBatches, cost_of, form_batches, number_rows


@names_arguments
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
    cache, a crop of chordcache, and a clip sampler with a method ``clip_shape``, see ``docs/mixing.md``. All others
    take about 0.1 ms for each sample, in every epoch, and so do captions and latents. With an index, videos that are
    not cached are opened to be measured, which takes far longer. Build the cache first.
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

    def fit(self, step: Callable[[Any], object], *, collate: Collate = collate) -> int:
        """Find the largest budget for the memory of a GPU, by trying batches until it ends.

        The first budget is that of the largest sample. It is doubled until ``step`` runs out of memory, then bisected
        to 5 %. Each try reads the largest batch that the budget allows in this epoch. Take a little less than the
        result for the run, because memory between tensors is lost in time.

        Parameters
        ----------
        step : callable
            Function that trains on a batch, with its forward and backward pass and the optimizer. It is called with
            what ``collate`` returns, in CPU memory, as by a loader without ``device``. Give it a copy of the model: its
            parameters change, and may be left in the middle of a step.
        collate : callable
            Function that makes a batch from a list of samples, as that of the loader.

        Returns
        -------
        int
            Cost of the largest batch that ``step`` took, in the unit of this sampler, such as frames for
            ``max_frames``. The samples of an epoch may be too few to fill the memory.

        Raises
        ------
        UsageError
            If CUDA is not available, or the memory does not suffice for the largest sample alone.
        """
        if not torch.cuda.is_available():
            raise UsageError(
                f"step: got no GPU, expected CUDA, whose memory limits the batches. Give {self._unit} instead of fit."
            )
        epochs, order, axes, kinds = self._measured(self._sampler)
        costs: dict[int, int] = {}

        def attempt(budget: int) -> None:
            batches = FormedBatches(epochs, order, *form_batches(axes, budget, kinds))
            longest = np.maximum.reduceat(axes[batches.places], batches.starts)
            of_batches = cost_of(longest) * (batches.stops - batches.starts)
            largest = int(np.argmax(of_batches))
            costs[budget] = int(of_batches[largest])
            step(collate(self._dataset.__getitems__(batches[largest])))

        of_all = len(order) * cost_of(axes.max(axis=0, keepdims=True))
        return costs[largest_budget(attempt, int(cost_of(axes).max()), int(of_all[0]))]

    def _formed(self, sampler: ChordSampler) -> FormedBatches:
        """Form the batches of a sampler's epoch."""
        epochs, order, axes, kinds = self._measured(sampler)
        costs = cost_of(axes)
        if costs.max() > self._budget:
            above = np.flatnonzero(costs > self._budget)
            place = above[np.argmin(order[above])]
            video, _ = self._dataset.describe((int(epochs[place]), int(order[place])))
            raise UsageError(
                f"{self._unit}: got {self._budget}, expected at least {costs[place]} for sample {order[place]} of "
                f"video '{video.key}'. Raise {self._unit}, or leave the video out of videos= or of the index."
            )
        return FormedBatches(epochs, order, *form_batches(axes, self._budget, kinds))

    def _measured(self, sampler: ChordSampler) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return epoch, index, axes and kind of each sample of a sampler's epoch."""
        epochs, order = sampler.draws()
        measures = self._dataset.measure(sampler.epoch, order) if self._unit in ("max_frames", "max_pixels") else None
        if measures is None:
            return epochs, order, *self._described(epochs, order)
        axes = measures[:, 3:-2] if self._unit == "max_frames" else measures[:, 3:]
        return epochs, order, axes, number_rows(measures * (measures[:, :1] > 0))

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
            length = getattr(self._tokenizer, "length", None)  # that of every caption in a batch, see ``collate``
            return (len(self._tokenizer(video.caption or "")) if length is None else length,)
        if self._unit == "max_latent_tokens":
            t, _, h, w = self._dataset.latents_shape(sample)
            return tuple(-(-length // side) for length, side in zip((t, h, w), self._patch, strict=True))
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


def largest_budget(attempt: Callable[[int], object], lowest: int, highest: int) -> int:
    """Return the largest budget in [lowest, highest], to 5 %, with which ``attempt`` does not run out of GPU memory.

    Raises ``UsageError`` if it does with the lowest one.
    """
    fits, above, budget = 0, highest + 1, lowest
    while budget > fits:
        try:
            attempt(budget)
            fits = budget
        except torch.cuda.OutOfMemoryError:
            above = budget
        if above == budget:
            gc.collect()  # before CUDA frees it: what the error held
        torch.cuda.empty_cache()
        if above == lowest:
            raise UsageError(
                f"step: got one that runs out of GPU memory with the largest sample alone, of {lowest}, expected one "
                "that takes it. Make the clips or the model smaller."
            )
        if above > highest:
            budget = min(2 * fits, highest)
        else:
            budget = (fits + above) // 2 if above - fits > fits // 20 else fits
    return fits
