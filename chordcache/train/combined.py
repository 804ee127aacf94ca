"""Datasets made of others: several one after the other, or some samples of one."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from chordcache.amounts import counted
from chordcache.arguments import names_arguments
from chordcache.digests import hex64
from chordcache.errors import UsageError
from chordcache.read.video import Video
from chordcache.train.batches import FrameBuffer
from chordcache.train.clip_dataset import ClipDataset
from chordcache.train.samplers.distributed import check_not_of_torch
from chordcache.train.samplers.weights import check_weights


@names_arguments
def concat(datasets: Iterable[ClipDataset], weights: Sequence[float] | None = None) -> ConcatenatedDataset:
    """Join datasets into one, whose samples are those of the first, then those of the second, and so on.

    The result can be used wherever a ``ChordVideoDataset`` can: in ``ClipLoader``, ``make_loader``, ``ChordSampler``,
    ``BudgetBatchSampler``, a plain ``DataLoader``, and in ``concat`` and ``subset`` again. Its ``sample_id`` has its
    own index, so that ``result[epoch, index]`` reads the sample again. ``set_epoch`` is that of the
    given datasets.

    Each dataset draws the clips and crops of its samples from its own seed, from the epoch, and from the index that the
    sample has in it. A sample is therefore the same in the result as in its dataset. Datasets of equal seeds use the
    same random numbers for samples of the same index, on different videos.

    All datasets need the same ``classes``, which are the classes of the result. If their labels differ, pass one list
    as ``classes=`` to each dataset.

    Parameters
    ----------
    datasets : iterable of ClipDataset
        The datasets, at least one. A dataset may be in the list several times.
    weights : sequence of float, optional
        Share of the draws that each dataset gets in every epoch, [at least 0, in any unit]. ``ChordSampler``, which
        the loaders use by default, then draws samples at random and with replacement, see there. Within a dataset,
        samples are drawn by their own weights if it has any, or else all with the same probability. By default an
        epoch has every sample once. If a dataset has weights of its own, it gets a share in proportion to its length.

    Raises
    ------
    UsageError
        If ``datasets`` is empty, if one is not of chordcache, if their classes, features, fields, ``missing``, the
        number of frames in a clip or the size of the crop differ, as far as these are known, or if the weights are
        wrong.
    """
    return ConcatenatedDataset(datasets, weights)


@names_arguments
def subset(dataset: ClipDataset, positions: ArrayLike | slice | range) -> SubsetOfDataset:
    """Select samples of a dataset by their positions.

    The result has the ``classes`` of the dataset, and each sample keeps its weight if the dataset has weights.
    ``set_epoch`` is that of the given dataset.

    The result can be used wherever the dataset can. Its ``sample_id`` has the position in the subset, so that
    ``result[epoch, index]`` reads the sample again. Clips and crops are drawn as in the dataset: sample i of the result
    is sample ``positions[i]`` of the dataset in the same epoch. ``BatchAugment`` draws from ``sample_id``, and so
    differs between the two.

    Parameters
    ----------
    dataset : ClipDataset
        The dataset.
    positions : array_like, slice or range
        Positions [shape=(n,), dtype=int, in [-len, len)] in any order, repeats allowed, or a mask [shape=(len,),
        dtype=bool].

    Raises
    ------
    UsageError
        If the dataset is not of chordcache, or ``positions`` selects nothing or is not as above.
    """
    return SubsetOfDataset(dataset, positions)


class _CombinedDataset(ClipDataset):
    """Base class of datasets whose samples are those of others."""

    _parts: tuple[ClipDataset, ...]
    """These datasets"""

    @abstractmethod
    def _locate_all(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the dataset that has each sample, and the positions of the samples in these."""

    def _locate(self, number: int) -> tuple[int, int]:
        """Return the number of the dataset that has a sample, and the position of the sample in it."""
        place, own = self._locate_all(np.array([number]))
        return int(place[0]), int(own[0])

    def _drawn(self, index: int | tuple[int, int]) -> tuple[int, int]:
        epoch, number = self._split(index)
        if epoch is None:
            place, own = self._locate(number)
            epoch = self._parts[place]._drawn(own)[0]
        return epoch, number

    def _read(self, indices: Sequence[tuple[int, int]], buffers: Sequence[FrameBuffer | None]) -> list[dict[str, Any]]:
        places, own = self._locate_all(np.array([number for _, number in indices]))
        samples: list[dict[str, Any]] = [{} for _ in indices]
        for place in np.unique(places).tolist():
            chosen = np.flatnonzero(places == place).tolist()
            of_place = [(indices[i][0], int(own[i])) for i in chosen]
            read = self._parts[place]._read(of_place, [buffers[i] for i in chosen])
            for i, sample in zip(chosen, read, strict=True):
                samples[i] = {**sample, "sample_id": "{}:{}".format(*indices[i])}
        return samples

    @property
    def fetches(self) -> bool:
        """True if the files of some videos come from an object store, see ``ClipDataset``."""
        return any(dataset.fetches for dataset in self._parts)

    def fetch(self, index: tuple[int, int]) -> None:
        """Fetch the files of a sample from an object store, see ``ClipDataset``."""
        place, own = self._locate(index[1])
        self._parts[place].fetch((index[0], own))

    def describe(self, index: tuple[int, int]) -> tuple[Video, tuple[int, ...]]:
        """Describe a sample, see ``ClipDataset``."""
        place, own = self._locate(self._split(index)[1])
        return self._parts[place].describe((index[0], own))

    def measure(self, epoch: int, numbers: np.ndarray) -> np.ndarray | None:
        """Measure many samples, see ``ClipDataset``."""
        places, own = self._locate_all(numbers)
        measures: np.ndarray | None = None
        for place in np.unique(places).tolist():
            chosen = places == place
            of_dataset = self._parts[place].measure(epoch, own[chosen])
            if of_dataset is None or (measures is not None and measures.shape[1] != of_dataset.shape[1]):
                return None
            if measures is None:
                measures = np.empty((len(numbers), of_dataset.shape[1]), np.int64)
            measures[chosen] = of_dataset
        return measures

    def latents_shape(self, index: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the latents of a sample, see ``ClipDataset``."""
        place, own = self._locate(self._split(index)[1])
        return self._parts[place].latents_shape((index[0], own))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of all reads by plain indices, also of reads from the given datasets."""
        for dataset in self._parts:
            dataset.set_epoch(epoch)


class ConcatenatedDataset(_CombinedDataset):
    """Several datasets, one after the other. See ``concat``, which has the parameters."""

    def __init__(self, datasets: Iterable[ClipDataset], weights: Sequence[float] | None = None) -> None:
        if isinstance(datasets, ClipDataset):
            raise UsageError("datasets: got one dataset, expected a list. Write concat([first, second]).")
        self._parts = tuple(datasets)
        if not self._parts:
            raise UsageError("datasets: got none, expected at least one")
        for part in self._parts:
            _check_dataset("datasets", part)
        self._stops = np.cumsum([len(part) for part in self._parts])
        self._settings = _agreed_settings(self._parts)
        self._weights = None if weights is None else _checked_shares(weights, self._parts)
        self.classes = _common_classes(self._parts)

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __repr__(self) -> str:
        weights = "" if self._weights is None else f", weights {', '.join(f'{w:g}' for w in self._weights)}"
        return f"<concat of {counted(len(self._parts), 'dataset')}: {counted(len(self), 'sample')}{weights}>"

    def _locate_all(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        places = np.searchsorted(self._stops, numbers, side="right")
        return places, numbers - np.r_[0, self._stops][places]

    @property
    def label_ids(self) -> np.ndarray:
        """Position in ``classes`` of every sample's label, see ``ClipDataset``."""
        return np.concatenate([part.label_ids for part in self._parts])

    @property
    def identity(self) -> Mapping[str, str]:
        """Digests of the datasets, see ``ClipDataset``."""
        of_parts = [part.identity for part in self._parts]
        names = {name: None for of_part in of_parts for name in of_part}
        return {name: hex64(" ".join(of_part.get(name, "") for of_part in of_parts).encode()) for name in names}

    @property
    def sample_weights(self) -> np.ndarray | None:
        """Weight of every sample, see ``ClipDataset``. The weights of one dataset add up to its share."""
        own = [part.sample_weights for part in self._parts]
        if self._weights is None and all(weights is None for weights in own):
            return None
        lengths = [float(len(part)) for part in self._parts]
        shares = lengths if self._weights is None else self._weights
        return np.concatenate([_spread(*part) for part in zip(shares, self._parts, own, strict=True)])

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings in which the samples of a batch agree, see ``ClipDataset``."""
        return self._settings


class SubsetOfDataset(_CombinedDataset):
    """Some samples of a dataset. See ``subset``, which has the parameters."""

    def __init__(self, dataset: ClipDataset, positions: ArrayLike | slice | range) -> None:
        _check_dataset("dataset", dataset)
        self._dataset = dataset
        self._parts = (dataset,)
        self._positions = _checked_positions(positions, len(dataset))
        self.classes = dataset._class_names

    def __len__(self) -> int:
        return len(self._positions)

    def __repr__(self) -> str:
        return f"<subset of {counted(len(self), 'sample')} of {self._dataset!r}>"

    def _locate_all(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros_like(numbers), self._positions[numbers]

    @property
    def label_ids(self) -> np.ndarray:
        """Position in ``classes`` of every sample's label, see ``ClipDataset``."""
        ids: np.ndarray = self._dataset.label_ids[self._positions]
        return ids

    @property
    def identity(self) -> Mapping[str, str]:
        """Digests of the dataset and of the positions, see ``ClipDataset``."""
        of_dataset = self._dataset.identity
        positions = of_dataset.get("positions", "").encode() + self._positions.tobytes()
        return {**of_dataset, "positions": hex64(positions)}

    @property
    def sample_weights(self) -> np.ndarray | None:
        """Weight of every sample in the dataset, see ``ClipDataset``."""
        weights = self._dataset.sample_weights
        return None if weights is None else weights[self._positions]

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings in which the samples of a batch agree, see ``ClipDataset``."""
        return self._dataset.settings


def _check_dataset(argument: str, dataset: object) -> None:
    check_not_of_torch(dataset)
    if not isinstance(dataset, ClipDataset):
        raise UsageError(
            f"{argument}: got a {type(dataset).__name__}, expected a ChordVideoDataset, or what concat or subset made"
        )


def _agreed_settings(parts: Sequence[ClipDataset]) -> Mapping[str, object]:
    """Return the known settings of all parts, or raise ``UsageError`` for the first in which two of them differ."""
    agreed: dict[str, object] = {}
    source: dict[str, int] = {}
    for place, part in enumerate(parts):
        for name, value in part.settings.items():
            if agreed.setdefault(name, value) != value:
                raise UsageError(
                    f"{name}: got {value!r} in dataset {place}, expected {agreed[name]!r} as in dataset "
                    f"{source[name]}. Make the datasets with the same {name}, since their samples share batches."
                )
            source.setdefault(name, place)
    return agreed


def _common_classes(parts: Sequence[ClipDataset]) -> list[str]:
    """Return the classes of all parts, or raise ``UsageError`` for the first part that has others."""
    first = parts[0]._class_names
    for place, part in enumerate(parts):
        names = part._class_names
        if names != first:
            extra, missing = (
                [name for name in one if name not in other] for one, other in ((names, first), (first, names))
            )
            got = f"{extra} besides" if extra else "another order" if not missing else "others"
            lacks = f", without {missing}" if missing else ""
            raise UsageError(
                f"classes: got {got} in dataset {place}{lacks}, expected those of dataset 0. Pass one list as classes= "
                "to each dataset."
            )
    return first


def _checked_shares(weights: Sequence[float], parts: Sequence[ClipDataset]) -> list[float]:
    try:
        shares = np.array(weights, np.float64)
    except (TypeError, ValueError):
        shares = np.empty(0)
    if shares.shape != (len(parts),):
        raise UsageError(f"weights: got {weights!r}, expected {len(parts)} numbers, one for each dataset")
    check_weights(shares)
    return [float(share) for share in shares]


def _spread(share: float, part: ClipDataset, own: np.ndarray | None) -> np.ndarray:
    """Distribute a share to the samples of a dataset, by their own weights if there are any."""
    if own is None:
        return np.full(len(part), share / len(part))
    total = math.fsum(own)  # rounds the same way in any release of numpy: a resumed run compares weights bit by bit
    if not total:
        raise UsageError(f"weights: got a sum of 0 for the samples of {part!r}, expected a sum above 0. Leave it out.")
    return own * (share / total)


def _checked_positions(positions: ArrayLike | slice | range, length: int) -> np.ndarray:
    """Return positions [shape=(n,), dtype=int64, in [0, length)], or raise ``UsageError``."""
    if isinstance(positions, slice):
        positions = range(length)[positions]
    if isinstance(positions, range):
        positions = np.arange(positions.start, positions.stop, positions.step, dtype=np.int64)
    checked = np.asarray(positions)
    if checked.dtype == bool and checked.shape == (length,):
        checked = np.flatnonzero(checked)
    if not checked.size:
        raise UsageError(f"positions: got none, expected at least one of {counted(length, 'sample')}")
    if checked.ndim != 1 or checked.dtype.kind not in "iu":
        raise UsageError(
            f"positions: got {checked.dtype} of shape {checked.shape}, expected integers of shape (n,), a slice, or a "
            f"mask of {length} bools"
        )
    wrong = (checked < -length) | (checked >= length)
    if wrong.any():
        raise UsageError(
            f"positions: got {checked[np.argmax(wrong)]}, expected positions in [{-length}, {length}) as the dataset "
            f"has {counted(length, 'sample')}"
        )
    numbers = checked.astype(np.int64)
    return np.where(numbers < 0, numbers + length, numbers)
