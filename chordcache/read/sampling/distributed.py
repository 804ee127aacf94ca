"""Which sample comes when, and to which rank: a pure function of the seed and the epoch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np

from chordcache.errors import UsageError
from chordcache.read.arguments import check_at_least
from chordcache.read.sampling.clip_samplers import ClipRequest, RandomStream

ON_REMAINDER = ("pad", "drop")


class ChordSampler:
    """The order of a dataset's samples: for a ``DataLoader``'s ``sampler``, or a ``ClipLoader``.

    It yields ``(epoch, index)``, so that workers that hold copies of the dataset know the epoch too. An epoch has one
    order for all ranks; they are dealt its samples in turn, as many to each, and no sample twice. The order depends on
    the seed, the epoch and the number of samples only: not on workers, threads or ranks.

    ``state_dict`` says how much of the epoch's order is used up, whoever used it. So a run may go on with more ranks
    or fewer, with other workers, and also with batches of another size.

    Parameters
    ----------
    dataset : sized or int
        What is put in order, or its length.
    seed : int
        For the order alone.
    shuffle : bool
        Every epoch in an order of its own; or each in that of the dataset.
    rank, world_size : int, optional
        This process, and how many there are. By default what ``torch.distributed`` says when it is asked, and 0 of 1
        where it has not been started.
    on_remainder : {"pad", "drop"}
        What happens if ``world_size`` does not divide the samples: the first ones of the order are handed out once
        more at its end, or the last ones of the order (others in each epoch) are left out.
    batch_size : int
        How many samples a batch of one rank has, for ``state_dict(num_batches_consumed=...)``.

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
    ) -> None:
        self.num_samples = dataset if isinstance(dataset, int) else len(dataset)
        check_at_least(1, num_samples=self.num_samples, batch_size=batch_size)
        ClipRequest(seed=seed)  # says what is wrong with it
        if on_remainder not in ON_REMAINDER:
            raise UsageError(f"on_remainder: got {on_remainder!r}, must be one of {', '.join(ON_REMAINDER)}")
        if (rank is None) != (world_size is None):
            raise UsageError(f"give both rank and world_size, or neither; got {rank!r} and {world_size!r}")
        if rank is not None:
            check_at_least(0, rank=rank)
            check_at_least(rank + 1, world_size=world_size)
        self.seed = seed
        self.shuffle = shuffle
        self.batch_size = batch_size
        self._on_remainder = on_remainder
        self._place = rank, world_size
        self._epoch = 0
        self._start = 0
        """Where in the epoch's order this pass begins, or the next one if none has begun"""
        self._has_begun = False
        self._num_drawn = 0
        """Samples of this rank, in this pass"""

    def check_length(self, dataset: Sized) -> None:
        """Raise ``UsageError`` if a dataset has another number of samples."""
        if self.num_samples != len(dataset):
            raise UsageError(
                f"sampler: it puts {self.num_samples} samples in order, but the dataset has {len(dataset)}"
            )

    @property
    def epoch(self) -> int:
        """Of this pass, and of the next one if nobody says otherwise."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. In an epoch whose state was loaded, that is the rest of it.

        Raises
        ------
        UsageError
            If it is not an integer of at least 0.
        """
        ClipRequest(epoch=epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._start = self._num_drawn = 0
            self._has_begun = False

    def __len__(self) -> int:
        """Samples of this rank in a pass."""
        return self._num_rounds(self._start)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Begin a pass: over the rest of the epoch if a state was just loaded, else over all of it."""
        if self._has_begun:
            self._start = 0
        self._has_begun = True
        self._num_drawn = 0
        return self._pairs(self._epoch, self._mine())

    def _pairs(self, epoch: int, numbers: np.ndarray) -> Iterator[tuple[int, int]]:
        for number in numbers:
            self._num_drawn += 1
            yield epoch, int(number)

    def _mine(self) -> np.ndarray:
        """What this rank gets of the order from ``_start`` on."""
        rank, world_size = self._rank_of_world()
        order = self.order()
        # Padding goes round again as often as a tiny dataset needs it
        end = self._start + self._num_rounds(self._start) * world_size
        positions = np.arange(self._start + rank, end, world_size)
        return order[positions % self.num_samples]

    def order(self) -> np.ndarray:
        """All samples [shape=(num_samples,), dtype=int64] in the order of the epoch, whatever the ranks get of it."""
        if not self.shuffle:
            return np.arange(self.num_samples)
        # Raw bits, since those of a numpy Generator's permutation may change from release to release
        key = np.array([self.seed, self._epoch], np.uint64)
        bits = np.random.Philox(key=key, counter=np.array([0, 0, RandomStream.ORDER, 0], np.uint64))
        return np.argsort(bits.random_raw(self.num_samples), kind="stable")

    def of_batches(self, num_batches: int) -> ChordSampler:
        """Make the sampler that deals batches 0, 1, 2 ... to the ranks, in this epoch, as this one does samples."""
        rank, world_size = self._place
        dealer = ChordSampler(
            num_batches, shuffle=False, rank=rank, world_size=world_size, on_remainder=self._on_remainder
        )
        dealer.set_epoch(self._epoch)
        return dealer

    def _num_rounds(self, start: int) -> int:
        """How often each rank is dealt a sample from ``start`` on."""
        _, world_size = self._rank_of_world()
        remaining = self.num_samples - start
        if self._on_remainder == "pad":
            return -(-remaining // world_size)
        if self.num_samples < world_size:
            raise UsageError(
                f"{self.num_samples} samples cannot be dealt to {world_size} ranks without padding: every epoch would "
                "be empty; choose on_remainder='pad'"
            )
        return remaining // world_size

    def _rank_of_world(self) -> tuple[int, int]:
        rank, world_size = self._place
        if rank is not None and world_size is not None:
            return rank, world_size
        distributed = sys.modules.get("torch.distributed")  # what nobody has imported, nobody has started
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1

    def state_dict(self, num_batches_consumed: int | None = None) -> dict[str, Any]:
        """Where the run is, as plain data: the same on every rank that has consumed as many batches.

        Parameters
        ----------
        num_batches_consumed : int, optional
            Batches of this pass that were used. By default all that were drawn, which is what torchdata's
            ``StatefulDataLoader`` asks for; under a plain ``DataLoader`` that prefetches, more are drawn than used.

        Returns
        -------
        dict
            For ``load_state_dict``, of any rank.
        """
        num_used = self._num_drawn
        if num_batches_consumed is not None:
            check_at_least(0, num_batches_consumed=num_batches_consumed)
            num_used = num_batches_consumed * self.batch_size
        is_over = num_used >= self._num_rounds(self._start)
        _, world_size = self._rank_of_world()
        return {
            "seed": self.seed,
            "shuffle": self.shuffle,
            "num_samples": self.num_samples,
            "epoch": self._epoch,
            "num_consumed": self.num_samples if is_over else self._start + num_used * world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a run was: the next pass is over what is left of its epoch.

        Raises
        ------
        UsageError
            If it is no such state, or that of another order: other samples, or another seed.
        """
        mine = self.state_dict(0)
        if state.keys() != mine.keys():
            raise UsageError(f"not the state of a ChordSampler: it has {', '.join(map(str, state)) or 'nothing'}")
        for name in ("seed", "shuffle", "num_samples"):
            if state[name] != mine[name]:
                raise UsageError(
                    f"this state is of a run with {name}={state[name]!r}, but the sampler has {mine[name]!r}, and so "
                    "another order; make the sampler and the dataset as they were"
                )
        ClipRequest(epoch=state["epoch"])
        check_at_least(0, num_consumed=state["num_consumed"])
        self._epoch = state["epoch"]
        self._start = min(state["num_consumed"], self.num_samples)
        self._num_drawn = 0
        self._has_begun = False
