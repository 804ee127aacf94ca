"""Batches of as many samples as fit into a budget: few long clips, or many short clips."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from chordcache.arguments import check_at_least
from chordcache.digests import digest64
from chordcache.errors import UsageError
from chordcache.train.samplers.distributed import ChordSampler, check_not_of_torch

if TYPE_CHECKING:
    from chordcache.read.video import Video
    from chordcache.train.clip_dataset import ClipDataset

Axes: TypeAlias = tuple[int, ...]
"""Lengths of a sample that the budget counts, at least 1 each. Their product is the cost of the sample alone."""


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
    Measuring takes about 0.1 ms for each sample, in every epoch. A clip sampler that reads, such as
    ``AdaptiveSampler``, adds to that. With an index, videos that are not cached are opened to be measured, which takes
    far longer. Build the cache first.

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
        by_index = np.argsort(order, kind="stable")  # neighbors in the catalog after one another
        axes: list[Axes] = [()] * len(order)
        kinds: list[Hashable] = [None] * len(order)
        for place in by_index.tolist():
            sample = int(epochs[place]), int(order[place])
            video, shape = self._dataset.describe(sample)
            axes[place] = self._axes_of(video, shape, sample)
            kinds[place] = None if video.bucket is None else (video.bucket, shape)
        return _Batches(epochs, order, form_batches(range(len(axes)), axes, self._budget, kinds))

    def _axes_of(self, video: Video, shape: tuple[int, ...], sample: tuple[int, int]) -> Axes:
        """Return the axes of a sample, from its video and the shape of its frames (T, h, w, 3)."""
        if self._tokenizer is not None:
            lengths: tuple[int, ...] = (len(self._tokenizer(video.caption or "")),)
        elif self._unit == "max_latent_tokens":
            *clips, t, _, h, w = self._dataset.latents_shape(sample)
            patches = (-(-length // side) for length, side in zip((t, h, w), self._patch, strict=True))
            lengths = (*clips, *patches)
        else:
            lengths = shape[:-3] if self._unit == "max_frames" else shape[:-1]
        axes = tuple(max(1, length) for length in lengths)  # a sample without tokens also takes a place
        if math.prod(axes) > self._budget:
            raise UsageError(
                f"{self._unit}: got {self._budget}, expected at least {math.prod(axes)} for sample {sample[1]} of "
                f"video '{video.key}'. Raise {self._unit}, or leave the video out of videos= or of the index."
            )
        return axes

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
    places: list[list[int]]
    """Positions in the order of the samples of each batch"""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> list[tuple[int, int]]:
        places = self.places[number]
        return list(zip(self.epochs[places].tolist(), self.order[places].tolist(), strict=True))

    def digest(self) -> int:
        """Return a hash of the samples of all batches."""
        numbers = [number for places in self.places for number in (len(places), *self.order[places].tolist())]
        return digest64(np.array(numbers, "<i8").tobytes())


def form_batches(
    order: Iterable[int], axes: Sequence[Axes], budget: int, kinds: Sequence[Hashable] | None = None
) -> list[list[int]]:
    """Put samples into batches of similar shape, each as large as the budget allows.

    ``axes`` and ``kinds`` have an element for every sample. Samples of different kinds do not share a batch. The cost
    of a single sample must not exceed the budget. Batches are in the order of their first samples.

    Examples
    --------
    >>> form_batches([0, 1, 2, 3, 4], axes=[(12,), (30,), (13,), (14,), (30,)], budget=60)
    [[0, 2, 3], [1, 4]]
    """
    batches: list[list[int]] = []
    open_batches: dict[Hashable, tuple[list[int], Axes]] = {}
    """Batch that is being filled and its longest axes, by kind and range of each axis"""
    for number in order:
        alike = kinds[number] if kinds else None, *(_half_octave(length) for length in axes[number])
        batch, longest = open_batches.get(alike, ([], ()))
        grown = tuple(map(max, longest, axes[number]))
        if not batch or (len(batch) + 1) * math.prod(grown) > budget:
            batch, grown = [], axes[number]
            batches.append(batch)
        batch.append(number)
        open_batches[alike] = batch, grown
    return batches


def _half_octave(length: int) -> int:
    """Return the range of a length. Its longest length is less than the square root of 2 times its shortest.

    The ranges are 1, 2, 3, 4 to 5, 6 to 7, 8 to 11, 12 to 15, 16 to 22 ...
    """
    return (length * length).bit_length()
