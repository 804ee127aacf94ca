"""Order of the samples and their distribution to ranks, as a pure function of the seed and the epoch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sized
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import distributed
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data.distributed import DistributedSampler

from chordcache.arguments import check_at_least, check_choice, names_arguments
from chordcache.digests import digest64
from chordcache.errors import UsageError
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.samplers.clip_request import EPOCHS, ClipRequest, RandomStream
from chordcache.train.samplers.weights import checked_weights, draw, num_earlier


def _batches_of_a_round() -> int | None:
    """Return how many batches accelerate takes from the caller for one batch of each rank, None without accelerate.

    A loader that ``accelerator.prepare`` made splits the batches of any sampler across ranks, and the transformers
    ``Trainer`` uses it too. The sampler is not notified. Only the call stack shows for whom it is iterated.
    """
    accelerate = sys.modules.get("accelerate.data_loader")  # a module that is not imported did not call either
    frame = sys._getframe() if accelerate is not None else None
    while frame is not None and accelerate is not None:
        if frame.f_globals is vars(accelerate):
            owner = frame.f_locals.get("self")
            if isinstance(owner, accelerate.BatchSamplerShard) and owner.num_processes > 1:
                return 1 if owner.split_batches else owner.num_processes
            if isinstance(owner, accelerate.DataLoaderDispatcher):
                return 1 if owner.split_batches else owner.state.num_processes
        frame = frame.f_back
    return None


def check_not_of_torch(dataset: object) -> None:
    """Raise ``UsageError`` for a combination of datasets that cannot be read by ``(epoch, index)``."""
    if isinstance(dataset, (ConcatDataset, Subset)):
        raise UsageError(
            f"dataset: got torch's {type(dataset).__name__}, expected a dataset that is read by (epoch, index). Use "
            "chordcache.concat(datasets, weights=...) or chordcache.subset(dataset, positions)."
        )


@names_arguments
class ChordSampler(DistributedSampler[tuple[int, int]]):
    """Sampler that puts a dataset's samples in order, for a ``DataLoader``'s ``sampler`` or a ``ClipLoader``.

    The sampler yields ``(epoch, index)``, so that workers that hold copies of the dataset know the epoch too. An epoch
    has one order for all ranks. Its samples are distributed to the ranks in turn, the same number to each, and no
    sample twice. The order depends on the seed, the epoch, the number of samples and the weights only, not on workers,
    threads or ranks.

    Each pass is one epoch: a pass without ``set_epoch`` is the epoch after the last pass. ``state_dict`` returns how
    much of the epoch's order all ranks together have used. A run may therefore resume with more or fewer ranks, with
    other workers, and with batches of another size.

    Without weights, an epoch has every sample once. With weights, an epoch is ``num_samples`` independent draws with
    replacement. The probability of a sample is in proportion to its weight. Each draw of a sample has random numbers of
    its own: the n-th further draw in an epoch is ``(epoch + n * 2**32, index)``, in ``sample_id`` too. Ranks split the
    draws as they split the samples.

    The class is a ``DistributedSampler`` of torch, so that Lightning and Fabric do not split the samples again. In a
    loader that accelerate prepared, the sampler yields the samples of all ranks, and accelerate splits the batches.

    Parameters
    ----------
    dataset : sized or int
        The dataset, or its length.
    seed : int
        Seed of the order alone.
    shuffle : bool
        If True, every epoch has its own random order. If False, every epoch has the order of the dataset.
    rank, world_size : int, optional
        Number of this process, and number of processes. By default the values of ``torch.distributed`` at the time of
        use, and 0 and 1 if it has not been started.
    on_remainder : {"pad", "drop"}
        Policy if ``world_size`` does not divide the samples. "pad" repeats the first samples of the order at its end.
        "drop" leaves out the last samples of the order, which differ in each epoch.
    batch_size : int
        Number of samples in a batch of one rank, for ``state_dict(num_batches_consumed=...)``.
    weights : array_like or "balanced", optional
        Weight of each sample [shape=(len(dataset),), float, at least 0]. "balanced" draws each class that has samples
        with the same probability, and each sample of a class too. Every sample then needs a label. By default the
        dataset's own weights, see ``concat``. A dataset without weights is not drawn but permuted.
    num_samples : int, optional
        Number of draws in an epoch, of all ranks together. By default the length of the dataset. Only with weights.

    Raises
    ------
    UsageError
        If an argument is wrong.

    Examples
    --------
    >>> [index for epoch, index in ChordSampler(5, shuffle=False, rank=0, world_size=2)]
    [0, 2, 4]
    >>> [index for epoch, index in ChordSampler(5, shuffle=False, rank=1, world_size=2)]
    [1, 3, 0]
    >>> [index for epoch, index in ChordSampler(3, weights=[0, 1, 4], num_samples=10)]
    [2, 2, 2, 1, 2, 2, 2, 1, 2, 2]
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        on_remainder: str = "pad",
        batch_size: int = 1,
        weights: ArrayLike | str | None = None,
        num_samples: int | None = None,
    ) -> None:
        check_not_of_torch(dataset)
        self._num_in_dataset = dataset if isinstance(dataset, int) else len(dataset)
        check_at_least(1, dataset=self._num_in_dataset, batch_size=batch_size)
        check_at_least(0, seed=seed)
        self._weights = checked_weights(weights, dataset, self._num_in_dataset)
        self._dataset = dataset
        self._weights_digest = None if self._weights is None else digest64(self._weights.astype("<f8").tobytes())
        self._check_draws(num_samples, shuffle)
        self.num_samples = self._num_in_dataset if num_samples is None else num_samples
        """Number of samples in an epoch, of all ranks together"""
        check_choice(("pad", "drop"), on_remainder=on_remainder)
        if (rank is None) != (world_size is None):
            raise UsageError(f"rank and world_size: got {rank!r} and {world_size!r}, expected both or neither")
        if rank is not None:
            check_at_least(0, rank=rank)
            check_at_least(rank + 1, world_size=world_size)
        self.seed = seed
        self.shuffle = shuffle
        self.batch_size = batch_size
        self._on_remainder = on_remainder
        self._place = rank, world_size
        self.epoch = 0
        """Epoch of this pass, or of the first one if none has begun"""
        self._start = 0
        """Position in the epoch's order at which this pass begins, or the next one if none has begun"""
        self._has_begun = False
        self._is_chosen = False
        """True if ``set_epoch`` chose the epoch of the next pass"""
        self._is_loaded = False
        """True from ``load_state_dict`` to the next pass"""
        self._shares = 1, 1
        """Ranks that this pass splits the samples to, and batches of all ranks for each batch of this rank"""
        self._num_drawn = 0
        """Number of samples of this rank drawn in this pass"""

    @cached_property
    def _identity(self) -> Mapping[str, str]:
        """Digests of the data, see ``ClipDataset.identity``. A run without a state does not need them."""
        return dict(self._dataset.identity) if isinstance(self._dataset, ClipDataset) else {}

    def _check_draws(self, num_samples: int | None, shuffle: bool) -> None:
        if self._weights is not None and not shuffle:
            raise UsageError(
                "shuffle: got False with weights, expected True. For the order of the dataset, leave the weights out, "
                "also those of concat."
            )
        if num_samples is None:
            return
        if self._weights is None:
            raise UsageError(
                f"num_samples: got {num_samples!r} without weights, expected None. Without weights, an epoch has every "
                "sample once."
            )
        check_at_least(1, num_samples=num_samples)

    def check_length(self, dataset: Sized) -> None:
        """Raise ``UsageError`` if a dataset has another number of samples."""
        if self._num_in_dataset != len(dataset):
            raise UsageError(
                f"sampler: got one for {self._num_in_dataset} samples, expected {len(dataset)} as in the dataset"
            )

    @property
    def next_epoch(self) -> int:
        """Epoch of the pass that begins next."""
        is_over = self._has_begun or self._start >= self.num_samples
        return self.epoch + (is_over and not self._is_chosen)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. If that epoch's state was loaded, the pass covers the rest of the epoch.

        Raises ``UsageError`` if ``epoch`` is not an integer of at least 0, or a state of a later epoch was just loaded.
        """
        ClipRequest(epoch=epoch)
        if self._is_loaded and epoch < self.epoch:
            raise UsageError(
                f"epoch: got {epoch} after load_state_dict of a state of epoch {self.epoch}, expected at least that. "
                "A framework that counts epochs by itself has to begin there, such as loader.set_epoch(sampler.epoch) "
                "of a loader that accelerate prepared."
            )
        self._is_chosen = True
        if epoch != self.epoch:
            self.epoch = epoch
            self._start = self._num_drawn = 0
            self._has_begun = False

    def __len__(self) -> int:
        """Return the number of samples of this rank in a whole epoch, also while a resumed pass has fewer."""
        return self._num_rounds(0, self._place_now()[1])

    @property
    def num_left(self) -> int:
        """Number of samples of this rank in this pass, or in the first one. See ``ClipLoader.num_batches_left``."""
        is_over = not self._has_begun and self.next_epoch != self.epoch
        return self._num_rounds(0 if is_over else self._start, self._place_now()[1])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the samples of a pass: the rest of the epoch if a state was just loaded, otherwise the whole epoch.

        The pass begins at its first sample, since a DataLoader makes iterators that it does not use.
        """
        epoch = self.next_epoch
        if self._has_begun or epoch != self.epoch:
            self._start = 0
        self.epoch, self._has_begun, self._num_drawn = epoch, True, 0
        self._is_chosen = self._is_loaded = False
        rank, world_size = self._place_now()
        self._shares = world_size, _batches_of_a_round() or world_size
        epochs, order = self.draws()
        # For a tiny dataset, padding repeats the order as often as needed
        end = self._start + self._num_rounds(self._start, world_size) * world_size
        for position in (np.arange(self._start + rank, end, world_size) % self.num_samples).tolist():
            self._num_drawn += 1
            yield int(epochs[position]), int(order[position])

    def draws(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the epochs and the indices [shape=(num_samples,), dtype=int64] of all samples, in their order.

        They are those of all ranks together. The epoch in ``(epoch, index)`` also counts the draws of a sample.
        """
        # Raw bits, since the permutation of a numpy Generator may change from release to release
        key = np.array([self.seed, self.epoch], np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, 0, RandomStream.ORDER, 0], np.uint64))
        raw = bits.random_raw(self.num_samples) if self.shuffle else np.arange(self.num_samples)
        if self._weights is None:
            return np.broadcast_to(np.int64(self.epoch), raw.shape), np.argsort(raw, kind="stable")
        order = draw(self._weights, raw)  # weights are of a shuffled sampler
        return self.epoch + num_earlier(order) * EPOCHS, order

    def at_epoch(self, epoch: int) -> ChordSampler:
        """Copy this sampler for another epoch, also one before that of a loaded state."""
        sampler = copy.copy(self)
        sampler._is_loaded = False
        sampler.set_epoch(epoch)
        return sampler

    def of_batches(self, num_batches: int) -> ChordSampler:
        """Make a sampler that distributes batches 0, 1, 2 ... to the ranks in this epoch, as this one does samples."""
        rank, world_size = self._place
        order = ChordSampler(
            num_batches, shuffle=False, rank=rank, world_size=world_size, on_remainder=self._on_remainder
        )
        order.set_epoch(self.epoch)
        return order

    def _num_rounds(self, start: int, world_size: int) -> int:
        """Return the number of samples that each rank gets from ``start`` on."""
        remaining = self.num_samples - start
        if self._on_remainder == "pad":
            return -(-remaining // world_size)
        if self.num_samples < world_size:
            raise UsageError(
                f"world_size: got {world_size}, expected at most {self.num_samples}, the number of samples. Otherwise "
                "every epoch would be empty. Choose on_remainder='pad'."
            )
        return remaining // world_size

    def _place_now(self) -> tuple[int, int]:
        """Return the rank that this sampler yields the samples of, and the number of ranks that it splits them to."""
        rank, world_size = self._place
        if _batches_of_a_round() is None:
            if rank is not None and world_size is not None:
                return rank, world_size
            is_started = distributed.is_available() and distributed.is_initialized()
            return (distributed.get_rank(), distributed.get_world_size()) if is_started else (0, 1)
        if world_size is not None and world_size > 1:
            raise UsageError(
                f"world_size: got {world_size} in a loader that accelerate prepared, expected None, since accelerate "
                "splits the batches across ranks. Leave rank and world_size out, or do not prepare the loader."
            )
        return 0, 1

    def state_dict(self, num_batches_consumed: int | None = None) -> dict[str, Any]:
        """Return the position of the run as plain data, for any rank. Ranks that consumed as many batches agree.

        Parameters
        ----------
        num_batches_consumed : int, optional
            Number of batches of this rank that were used in this pass. By default all that were drawn, as torchdata's
            ``StatefulDataLoader`` needs. A plain ``DataLoader`` that prefetches draws more batches than are used, and
            a loader that accelerate prepared draws those of all ranks.
        """
        world_size, round_size = self._shares if self._has_begun else (self._place_now()[1],) * 2
        num_used = self._num_drawn * world_size
        if num_batches_consumed is not None:
            check_at_least(0, num_batches_consumed=num_batches_consumed)
            num_used = num_batches_consumed * self.batch_size * round_size
        is_over = num_used >= self._num_rounds(self._start, world_size) * world_size
        weights = {} if self._weights is None else {"weights": self._weights_digest}
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_samples": self.num_samples,
            **weights,
            **({"data": self._identity} if self._identity else {}),
            "epoch": self.epoch,
            "num_consumed": self.num_samples if is_over else self._start + num_used,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a run. The next pass covers the rest of its epoch.

        Raises ``UsageError`` if ``state`` is not such a state, or belongs to another order: other samples, another
        seed, other weights, or other data: videos, their contents or their labels.
        """
        mine = self.state_dict(0)
        if state.get("weights") != mine.get("weights") and "seed" in state:
            raise UsageError(
                "state: got one of other weights, expected those of the sampler, since others give another order. Make "
                "the sampler and the dataset as they were."
            )
        data = state.get("data", {})
        if {*state, "data"} != {*mine, "data"} or not isinstance(data, Mapping):
            raise UsageError(
                f"state: got keys {', '.join(map(str, state)) or 'none'}, expected the state of a ChordSampler"
            )
        for name in ("seed", "shuffle", "num_samples"):
            if state[name] != mine[name]:
                raise UsageError(
                    f"state: got {name}={state[name]!r}, expected {mine[name]!r} as in the sampler, since another one "
                    "gives another order. Make the sampler and the dataset as they were."
                )
        if others := [name for name in {**self._identity, **data} if data.get(name) != self._identity.get(name)]:
            raise UsageError(
                f"state: got one of other {', '.join(others)}, expected those of the dataset. Resume on the data of "
                "the run. 'chordcache verify --against' a passport of it names each video that differs."
            )
        ClipRequest(epoch=state["epoch"])
        check_at_least(0, num_consumed=state["num_consumed"])
        self.epoch = state["epoch"]
        self._start = min(state["num_consumed"], self.num_samples)
        self._num_drawn = 0
        self._has_begun = self._is_chosen = False
        self._is_loaded = True
