"""MixUp and CutMix of a batch of clips: each clip with another one of the batch, and their labels by the same share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import one_hot

from chordcache.errors import UsageError
from chordcache.features.built_in import read_side
from chordcache.features.motion import BLOCK_PX, grid_size

WITHOUT_MEANING: Mapping[str, Mapping[str, str]] = {
    "mixup": {
        "flow": "The mean of the flows of two clips is the flow of neither",
        "motion": "The mean of the motion of two clips is the motion of neither",
        "pose": "The mean of the landmarks of two bodies is neither body",
    },
    "cutmix": {
        "mel": "Sound has no place in the picture that a box could cut",
        "waveform": "Sound has no place in the picture that a box could cut",
        "pose": "Landmarks are those of a whole body, of which a box shows a part",
    },
}
"""Features that a mix refuses, each with the reason"""


@dataclass(frozen=True)
class _Mixture:
    """The clips of a batch after mixing."""

    arrays: dict[str, torch.Tensor]
    """Arrays that were mixed, by their name in the batch"""
    partners: np.ndarray
    """[shape=(B,), dtype=int64] number of the clip that each clip is mixed with"""
    shares: np.ndarray
    """[shape=(B,), dtype=float32, in [0, 1]] share of the partner in each clip"""

    def of_partners(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of the partner of each clip."""
        return values[_copied_to(values.device, self.partners)]


def mixed(batch: Mapping[str, Any], mix: str, *, num_classes: int, random: np.random.Generator) -> dict[str, Any]:
    """Mix the clips of a batch with float ``frames``, see ``BatchAugment``. Return the values that change.

    These are ``label`` [shape=(B, num_classes), dtype=float32], the arrays of ``MIXED[mix]``, and, if the batch has
    them, ``labels``, ``lengths`` (the larger of both clips) and ``present`` (True where both clips have the feature).
    """
    label = _soft(batch["label"], num_classes)
    mixture = (_mix_up if mix == "mixup" else _cut_mix)(batch, random)
    share = _copied_to(label.device, mixture.shares)[:, None]
    out: dict[str, Any] = {**mixture.arrays, "label": label.lerp(mixture.of_partners(label), share)}
    if "lengths" in batch:
        own = {name: lengths for name, lengths in batch["lengths"].items() if name in mixture.arrays}
        larger = {name: torch.maximum(lengths, mixture.of_partners(lengths)) for name, lengths in own.items()}
        out["lengths"] = {**batch["lengths"], **larger}
    if "labels" in batch:
        of_device = _copied_to(batch["labels"].device, mixture.shares)[:, None]
        out["labels"] = batch["labels"].lerp(mixture.of_partners(batch["labels"]), of_device)
    if "present" in batch:
        out["present"] = batch["present"] & mixture.of_partners(batch["present"])
    return out


def _mix_up(batch: Mapping[str, Any], random: np.random.Generator) -> _Mixture:
    """Average each clip with its partner, by one share for all arrays."""
    num_clips = len(batch["frames"])
    mixture = _Mixture({}, _partners(num_clips, random), random.random(num_clips, np.float32))
    for name in _arrays("mixup"):
        if name in batch:
            own = batch[name]
            mixture.arrays[name] = _between(own, mixture.of_partners(own), _copied_to(own.device, mixture.shares))
    return mixture


def _between(own: torch.Tensor, partners: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Return the mean of two arrays, by the partner's share in each clip. Integers, as of int16 sound, are rounded."""
    shares = shares.view(-1, *[1] * (own.ndim - 1))
    if own.is_floating_point():
        return own.lerp(partners, shares.to(own.dtype))
    return own.float().lerp(partners.float(), shares).round().to(own.dtype)


def _cut_mix(batch: Mapping[str, Any], random: np.random.Generator) -> _Mixture:
    """Replace a box of each clip by the same box of its partner, in all arrays."""
    num_clips, size = len(batch["frames"]), batch["frames"].shape[-2:]
    partners = _partners(num_clips, random)
    boxes = _boxes(num_clips, size, random)
    arrays = {}
    for name in _arrays("cutmix"):
        if name in batch:
            grid = batch[name].shape[-2:]
            centers = [_cell_centers(name, side_px, num) for side_px, num in zip(size, grid, strict=True)]
            # Centers below a side of the box are before it, so that the box has the cells from first to stop
            cells = [np.searchsorted(of_axis, ends) for of_axis, ends in zip(centers, boxes, strict=True)]
            arrays[name] = _pasted(batch[name], partners, *cells)
    (top, bottom), (left, right) = boxes.transpose(0, 2, 1)
    shares = ((bottom - top) * (right - left) / (size[0] * size[1])).astype(np.float32)
    return _Mixture(arrays, partners, shares)


MIXED: Mapping[str, tuple[str, ...]] = {"mixup": ("frames", "mel", "waveform"), "cutmix": ("frames", "flow", "motion")}
"""Features that each mix changes"""


def check_motion(batch: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` if a batch has motion whose cells are not 16 x 16 pixels of the frames."""
    size, grid = batch["frames"].shape[-2:], batch["motion"].shape[-2:]
    if tuple(grid) != grid_size(*size):
        raise UsageError(
            f"batch: got motion on a grid of {tuple(grid)} for frames of {tuple(size)}, expected {grid_size(*size)}. "
            "Without a crop, cells are pixels of the source, whose size is unknown here. Make the dataset with size= "
            "or crop=."
        )


def _arrays(mix: str) -> list[str]:
    """Return the names in a batch of all arrays that a mix changes."""
    return [array for feature in MIXED[mix] for array in read_side(feature).padding]


def _partners(num_clips: int, random: np.random.Generator) -> np.ndarray:
    """Return a random permutation. The method ``permutation`` may change from one release of numpy to the next."""
    return np.argsort(random.random(num_clips), kind="stable")


def _boxes(num_clips: int, size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Draw boxes [shape=(2, B, 2), dtype=int64, pixels, half open]: rows [top, bottom), then columns [left, right).

    The area is uniform in [0, 1) of the picture before each side is rounded down. The box lies inside of the picture,
    each place equally likely.
    """
    scale = np.sqrt(random.random(num_clips))
    sides = np.stack([np.floor(scale * length) for length in size]).astype(np.int64)
    starts = random.integers(np.array(size)[:, None] - sides + 1)
    return np.stack([starts, starts + sides], axis=-1)


def _cell_centers(name: str, side_px: int, num_cells: int) -> np.ndarray:
    """Return the centers of the cells along one axis of an array [shape=(num_cells,), dtype=float64, frame pixels].

    The last cell of motion may be narrower than 16 pixels. Frames and flow divide the picture evenly.

    Examples
    --------
    >>> _cell_centers("frames", 4, 4).tolist(), _cell_centers("flows", 4, 2).tolist()
    ([0.5, 1.5, 2.5, 3.5], [1.0, 3.0])
    >>> _cell_centers("motion", 36, 3).tolist()
    [8.0, 24.0, 34.0]
    """
    if name in read_side("motion").padding:
        edges = np.minimum(np.arange(num_cells + 1) * BLOCK_PX, side_px)
        return (edges[:-1] + edges[1:]) / 2
    return (2 * np.arange(num_cells) + 1) * side_px / (2 * num_cells)


def _pasted(array: torch.Tensor, partners: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> torch.Tensor:
    """Return a copy in which the cells [first, stop) of ``rows`` and ``columns`` [shape=(B, 2)] are the partner's."""
    out = array.clone()
    for clip, partner in enumerate(partners.tolist()):
        box = (..., slice(*rows[clip]), slice(*columns[clip]))
        out[clip][box] = array[partner][box]
    return out


def _soft(label: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return one-hot labels [shape=(B, num_classes), dtype=float32], zero without a label."""
    hot = one_hot(label.clamp(min=0).long(), num_classes)
    return hot.to(torch.float32) * (label >= 0)[:, None]


def _copied_to(device: torch.device, values: np.ndarray) -> torch.Tensor:
    """Copy values to a device, without waiting for the work that it has."""
    return torch.from_numpy(values).to(device, non_blocking=True)
