"""Crops of the pictures of a sample, fixed or random. All features of a clip share one crop.

They raise ``UsageError`` for an argument that is out of range.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from chordcache.arguments import check_range, check_share, checked_size, names_arguments
from chordcache.errors import UsageError
from chordcache.media.cropping import CropBox

_ATTEMPTS = 10
"""Random draws of a crop before the largest crop in the middle is taken"""


class SpatialTransform(Protocol):
    """An object that chooses crops for a dataset. Any picklable object with this method can be used."""

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop of one sample from the size of the cached picture [pixels] and the sample's random numbers.

        The result may depend on the arguments only.
        """
        ...


@dataclass(frozen=True)
class _Sized:
    """Base class of the crops that have a fixed ``size``."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size))


@names_arguments
@dataclass(frozen=True)
class CenterCrop(_Sized):
    """A crop that scales the picture until it just covers ``size``, aspect kept, and cuts out the middle.

    Parameters
    ----------
    size : tuple of int
        (height, width) of the result, [pixels].

    Examples
    --------
    >>> CenterCrop((224, 224)).choose(256, 456, np.random.default_rng())
    CropBox(top=0, left=100, height=256, width=256, size=(224, 224), flip=False)
    >>> CenterCrop((112, 224)).choose(256, 456, np.random.default_rng())
    CropBox(top=14, left=0, height=228, width=456, size=(112, 224), flip=False)
    """

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop. See ``SpatialTransform``."""
        if self.size[0] * width >= self.size[1] * height:
            crop = height, min(width, max(1, round(self.size[1] * height / self.size[0])))
        else:
            crop = min(height, max(1, round(self.size[0] * width / self.size[1]))), width
        return _in_the_middle(height, width, crop, self.size)


@names_arguments
@dataclass(frozen=True)
class RandomResizedCrop(_Sized):
    """A crop of random area, shape and place, scaled to ``size``, for training.

    Parameters
    ----------
    size : tuple of int
        (height, width) of the result, [pixels].
    scale : tuple of float
        (least, most) fraction of the picture's area, in (0, 1].
    ratio : tuple of float
        (least, most) width / height of the crop, drawn uniformly on a logarithmic scale.

    Notes
    -----
    Source: torchvision's ``RandomResizedCrop``. It makes ten draws. If none fits into the picture, it takes the largest
    crop in the middle whose shape is within ``ratio``.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("scale", self.scale, most=1)
        check_range("ratio", self.ratio)

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop. See ``SpatialTransform``."""
        for _ in range(_ATTEMPTS):
            area = height * width * random.uniform(*self.scale)
            ratio = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            rows, columns = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < rows <= height and 0 < columns <= width:
                top, left = random.integers(height - rows + 1), random.integers(width - columns + 1)
                return CropBox(int(top), int(left), rows, columns, self.size)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        rows, columns = min(height, max(1, round(width / ratio))), min(width, max(1, round(height * ratio)))
        return _in_the_middle(height, width, (rows, columns), self.size)


@names_arguments
@dataclass(frozen=True)
class Resize:
    """A crop of the whole picture, scaled to ``size``, or until its short side is ``short_side``, aspect kept.

    With ``short_side``, pictures of different shapes keep different shapes. ``collate`` pads them in a batch.

    Parameters
    ----------
    size : tuple of int, optional
        (height, width) of the result, [pixels]. The aspect may change.
    short_side : int, optional
        Short side of the result, [pixels]. Smaller pictures are enlarged. Give this or ``size``.

    Examples
    --------
    >>> Resize(short_side=128).choose(256, 456, np.random.default_rng())
    CropBox(top=0, left=0, height=256, width=456, size=(128, 228), flip=False)
    """

    size: tuple[int, int] | None = None
    short_side: int | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.short_side is None):
            raise UsageError(f"size and short_side: got {self.size!r} and {self.short_side!r}, expected one of them")
        if self.size is not None:
            object.__setattr__(self, "size", checked_size(self.size))
        elif not isinstance(self.short_side, int) or self.short_side < 1:
            raise UsageError(f"short_side: got {self.short_side!r}, expected an integer of at least 1")

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop. See ``SpatialTransform``."""
        if self.short_side is None:
            assert self.size is not None
            return CropBox(0, 0, height, width, self.size)
        scale = self.short_side / min(height, width)
        return CropBox(0, 0, height, width, (round(height * scale), round(width * scale)))


@dataclass(frozen=True)
class Pad(_Sized):
    """A crop that scales the whole picture until it just fits into ``size``, aspect kept, and pads both sides.

    In the padding, frames are black, flow and motion are zero, and motion is not covered.

    Parameters
    ----------
    size
        As in ``CenterCrop``.

    Examples
    --------
    >>> Pad((224, 224)).choose(256, 456, np.random.default_rng())
    CropBox(top=-100, left=0, height=456, width=456, size=(224, 224), flip=False)
    """

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop. See ``SpatialTransform``."""
        if self.size[0] * width >= self.size[1] * height:
            crop = max(height, round(self.size[0] * width / self.size[1])), width
        else:
            crop = height, max(width, round(self.size[1] * height / self.size[0]))
        return _in_the_middle(height, width, crop, self.size)


@names_arguments
@dataclass(frozen=True)
class HorizontalFlip:
    """A crop that swaps left and right in some of the samples.

    The horizontal part of flow and motion then changes its sign, and left and right landmarks of a pose change places.

    Parameters
    ----------
    p : float
        Probability that a sample is mirrored, in [0, 1].
    of : SpatialTransform, optional
        The crop to mirror, such as ``RandomResizedCrop((224, 224))``. By default the whole picture at its cached size.
    """

    p: float = 0.5
    of: SpatialTransform | None = None

    def __post_init__(self) -> None:
        check_share(p=self.p)

    def choose(self, height: int, width: int, random: np.random.Generator) -> CropBox:
        """Choose the crop. See ``SpatialTransform``."""
        whole = CropBox(0, 0, height, width, (height, width))
        crop = whole if self.of is None else self.of.choose(height, width, random)
        return dataclasses.replace(crop, flip=crop.flip ^ bool(random.random() < self.p))


def _in_the_middle(height: int, width: int, crop: tuple[int, int], size: tuple[int, int]) -> CropBox:
    return CropBox((height - crop[0]) // 2, (width - crop[1]) // 2, *crop, size)


FIXED = (CenterCrop, Resize, Pad)
"""Crops that draw nothing"""


@lru_cache(maxsize=1024)
def fixed_crop(crop: SpatialTransform, height: int, width: int) -> CropBox:
    """Choose a crop that draws nothing, once for a size."""
    return crop.choose(height, width, np.random.default_rng(0))


def crop_sizes(crop: SpatialTransform | None, pictures: np.ndarray) -> np.ndarray | None:
    """Return the size of the crop of each picture, or None if it is not a crop of this module.

    ``pictures`` and the result [shape=(n, 2), dtype=int64, pixels] have height and width. The crop None leaves pictures
    at their size.
    """
    if isinstance(crop, HorizontalFlip):
        return crop_sizes(crop.of, pictures)
    if crop is None:
        return pictures
    if type(crop) not in (RandomResizedCrop, *FIXED):
        return None
    distinct, which = np.unique(pictures, axis=0, return_inverse=True)
    random = np.random.default_rng(0)
    return np.array([crop.choose(height, width, random).size for height, width in distinct.tolist()], np.int64)[which]


DEFAULT_SIZE = (224, 224)
"""(h, w) [pixels] of the center crop of a dataset, if none is given"""


def checked_crop(
    size: tuple[int, int] | str | None, crop: SpatialTransform | None, default: tuple[int, int] | None
) -> SpatialTransform | None:
    """Return the crop of a dataset, or raise ``UsageError``. ``default`` is the size in place of "default".

    With a crop, ``DEFAULT_SIZE`` counts as not given.
    """
    if crop is None:
        size = default if size == "default" else size
        return None if size is None else CenterCrop(checked_size(size, otherwise=", or None"))
    if size not in ("default", DEFAULT_SIZE):
        raise UsageError(f"size: got {size!r} and a crop, expected one of them. The crop has its own size.")
    if not callable(getattr(crop, "choose", None)):
        raise UsageError(f"crop: got {crop!r}, expected a crop such as RandomResizedCrop((224, 224))")
    return crop
