"""The interface of a dataset of clips, which loaders and samplers use."""

from __future__ import annotations

import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from chordcache.arguments import check_at_least
from chordcache.errors import StorageError, UsageError
from chordcache.read.video import Video
from chordcache.train.batches import FrameBuffer, FrameMemory, allocate

FETCHES_AT_ONCE = 16
"""Samples whose files a process fetches from an object store at a time"""

NO_LABELS = (
    "classes: got no label in any sample, so that label is -1 everywhere, expected labels. Scan with --labels, then "
    "run the same chordcache build: it adds labels without decoding."
)
"""Warning of a dataset that is asked for labels and has none"""


class ClipDataset(Dataset[dict[str, Any]], ABC):
    """Base class of the datasets of clips: ``ChordVideoDataset``, and the results of ``concat`` and ``subset``.

    An index is an int in [-len, len), or ``(epoch, int)``.
    """

    _class_names: list[str]

    @property
    def classes(self) -> list[str]:
        """Label names. The position of each name is its id. The access warns if no sample has a label."""
        if not self._class_names:
            warnings.warn(NO_LABELS, stacklevel=2)
        return self._class_names

    @classes.setter
    def classes(self, names: list[str]) -> None:
        self._class_names = names

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def _drawn(self, index: int | tuple[int, int]) -> tuple[int, int]:
        """Return the epoch and the position of an index. The draw of a plain int is of torch's default generator."""

    @abstractmethod
    def _read(self, indices: Sequence[tuple[int, int]], buffers: Sequence[FrameBuffer | None]) -> list[dict[str, Any]]:
        """Read samples, as ``read_samples`` does, in any order. Raise the error of any sample."""

    def read_samples(
        self, indices: Sequence[int | tuple[int, int]], buffers: Sequence[FrameBuffer | None]
    ) -> list[dict[str, Any]]:
        """Read samples together, see ``__getitem__``. Decode the frames of each into the caller's memory, if that fits.

        Each of ``buffers`` takes the shape (T, h, w, 3) of the frames. It returns None, or a uint8 array of that shape
        and a tensor, a permuted view of the array. ``frames`` is then that tensor instead of a contiguous one of its
        own. If it returns an ``EncodedFrames``, that is ``frames``, and has the JPEGs. Raises the error of the first
        sample that cannot be read.
        """
        drawn = [self._drawn(index) for index in indices]
        try:
            return self._read(drawn, buffers)
        except StorageError:  # of an object store that does not answer: the next try takes as long
            raise
        except Exception:  # item boundary: the first sample that fails is looked for
            for index, buffer in zip(drawn, buffers, strict=True) if len(drawn) > 1 else ():
                self._read([index], [buffer])  # raises: samples are not read in their order
            raise

    @property
    def fetches(self) -> bool:
        """True if the files of some videos come from an object store."""
        return False

    def fetch(self, index: tuple[int, int]) -> None:
        """Fetch the files of a sample (epoch, position) from an object store. Raises as ``__getitem__``."""

    @abstractmethod
    def describe(self, index: tuple[int, int]) -> tuple[Video, tuple[int, ...]]:
        """Return the video of a sample (epoch, position), with the sample's caption, and the shape of its frames.

        The shape is (T, h, w, 3) as frames are decoded, even if "frames" is not in ``features``. No feature is read but
        by the clip sampler. With an index, a video that is not cached is opened.
        """

    def measure(self, epoch: int, numbers: np.ndarray) -> np.ndarray | None:
        """Measure samples of an epoch at once, at these positions [shape=(n,), dtype=int64], from the catalog.

        Returns (height, width, num_frames) of the bucket of each sample, zero without one, then the k numbers of its
        shape (T, h, w), as ``describe`` does [shape=(n, 3 + k), dtype=int64]. None if ``describe`` has to be called.
        """
        return None

    def latents_shape(self, index: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape (t, C, h, w) of the latents of a sample (epoch, position), without reading them.

        Raises ``UsageError`` if samples do not have latents.
        """
        raise UsageError(f"features: got {self!r}, expected a dataset with the feature latents")

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of all reads by plain indices from now on, also in the workers of a DataLoader.

        Raises ``UsageError`` if ``epoch`` is not an integer of at least 0.
        """

    @property
    @abstractmethod
    def label_ids(self) -> np.ndarray:
        """Position in ``classes`` of every sample's label [shape=(len(self),), dtype=int64], -1 without a label.

        No sidecar is read. The array is made at each access.
        """

    @property
    def sample_weights(self) -> np.ndarray | None:
        """Weight of every sample [shape=(len(self),), dtype=float64], for ``ChordSampler``. None without weights."""
        return None

    @property
    def identity(self) -> Mapping[str, str]:
        """Digests of the videos, of what they show, and of their labels, by name, as far as these are known."""
        return {}

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, object]:
        """Settings in which the samples of a batch agree, by parameter. Those that are unknown are left out."""

    @property
    def fields(self) -> Mapping[str, str]:
        """Annotations that samples have by ``fields=``, each with its type: of ``COLUMN_TYPES``, or "multi_hot"."""
        fields = self.settings.get("fields", {})
        assert isinstance(fields, Mapping)
        return fields

    def __getitem__(self, index: int | tuple[int, int]) -> dict[str, Any]:
        """Read the sample at a position in [-len, len), or at (epoch, position). See ``ChordVideoDataset``.

        A sample that cannot be read is not replaced with another one. Raises ``IndexError`` if the position, or a frame
        number of the sampler, is out of range, ``MediaError`` if a source is broken, ``UsageError`` if the cache has
        gained or lost videos, or frames go backwards with the feature "flow", and as ``Cache.read``.
        """
        return self.read_samples([index], [None])[0]

    def __getitems__(self, indices: Sequence[int | tuple[int, int]]) -> list[dict[str, Any]]:
        """Read the samples of a batch, for a DataLoader. Raises the errors of ``__getitem__``.

        Each sample is what ``__getitem__`` returns, except for the memory of its frames. Clips of one shape are decoded
        into one tensor (B, T, h, w, 3), and each ``frames`` is a permuted view of it. In a worker process that tensor
        is in shared memory. The ``collate`` of ``make_loader`` passes the tensor on without a copy. Other collate
        functions may copy it.
        """
        if self.fetches:
            indices = drawn = [self._drawn(index) for index in indices]
            with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
                list(pool.map(self.fetch, drawn))
        return self.read_samples(indices, FrameMemory(len(indices), allocate).buffers(range(len(indices))))

    def _split(self, index: int | tuple[int, int]) -> tuple[int | None, int]:
        """Return the epoch of an index, None for a plain int, and the position in [0, len)."""
        try:
            epoch, position = index if isinstance(index, tuple) else (None, index)
            number = operator.index(position)
        except (TypeError, ValueError):
            what = f"index: got {index!r}, expected an integer, or (epoch, integer)"
            raise UsageError(f"{what}. For several samples, take chordcache.subset(dataset, positions).") from None
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"sample {position} is out of range for a dataset of {len(self)} samples")
        if epoch is not None:
            check_at_least(0, epoch=epoch)
        return epoch, number
