"""The statements of a sidecar about the files of its video, and the shapes of the arrays in these files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chordcache.storage.feature_info import FeatureInfo


@dataclass(frozen=True)
class Layout:
    """The shape and dtype of a streamed array in the file."""

    num_rows: int
    row_shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    """Dtype of the rows, or None if the rows are records"""

    @property
    def row_bytes(self) -> int:
        """Size of a row [bytes], or 0 for records, whose sizes differ."""
        return 0 if self.dtype is None else self.dtype.itemsize * math.prod(self.row_shape)


class Claims(NamedTuple):
    """The statements of a sidecar about the files of its video. They bound what a file can make a reader allocate."""

    num_frames: int
    features: tuple[FeatureInfo, ...]

    def of_file(self, path: Path) -> Claims:
        """Return the claims about one file."""
        return Claims(
            self.num_frames, tuple(f for f in self.features if f.file and f.file.name.endswith(f"/{path.name}"))
        )

    @property
    def max_rows(self) -> int:
        """Largest number of rows or of values of an array."""
        return max(self.num_frames, *(count for info in self.features for count in info.num_rows.values()), 0)

    @property
    def max_record_bytes(self) -> int | None:
        """Largest size of a record of frames [bytes]: that of the picture, and a margin. None for other records."""
        frames = next((info for info in self.features if info.feature == "frames"), None)
        if frames is None:
            return None
        height, width = frames.shape[1:3]
        return 3 * (height + _MARGIN_PX) * (width + _MARGIN_PX) + _MARGIN_BYTES

    @property
    def max_chain_bytes(self) -> int | None:
        """The same of the records of a chain together."""
        return None if self.max_record_bytes is None else self.max_record_bytes * self.gop

    @property
    def gop(self) -> int:
        """Largest number of records in a chain."""
        return next((info.params.get("gop", 1) for info in self.features if info.feature == "frames"), 1)

    def layout_problem(self, name: str, layout: Layout) -> str | None:
        """Return the reason why the rows of a file are not those that the sidecar states, or None."""
        for info in self.features:
            if name not in info.num_rows:
                continue
            if layout.num_rows != info.num_rows[name]:
                return f"got {layout.num_rows} rows of '{name}', expected {info.num_rows[name]}"
            if layout.dtype is not None and info.shape and (expected := _row_of(info, name)) is not None:
                got = layout.row_shape, str(layout.dtype.newbyteorder("="))
                if got != expected:
                    return f"got rows of '{name}' of {got}, expected {expected}"
        return None


def first_of_chain(number: int, gop: int, stride: int) -> int:
    """Return the first record of the chain that a record belongs to.

    A chain holds ``gop`` records at a distance of ``stride``.

    >>> [first_of_chain(number, gop=2, stride=3) for number in range(12)]
    [0, 1, 2, 0, 1, 2, 6, 7, 8, 6, 7, 8]
    """
    return number - number % (gop * stride) + number % stride


def _row_of(info: FeatureInfo, name: str) -> tuple[tuple[int, ...], str] | None:
    """Return shape and dtype of a row of an array of a feature, or None for an array of a plug-in."""
    shape = info.shape[1:]
    if name == "frames" and info.params["codec"] == "yuv420":
        return (shape[0] * 3 // 2, shape[1]), info.dtype
    known = {
        "flow.scale": ((), "float32"),
        "motion.covered": (shape[:-1], "bool"),
        "motion.types": ((), "|S1"),
        "latents.first_frame": (shape, info.dtype),
    }
    return (shape, info.dtype) if name == info.feature else known.get(name)


_MARGIN_PX = 64
_MARGIN_BYTES = 64 << 10
"""Margins of a coded picture: codecs fill the last blocks up, and have headers"""
