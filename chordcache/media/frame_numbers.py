"""Frame numbers: the check of those that a caller asks for, and numbers that are evenly spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from chordcache.errors import UsageError


def evenly_spread(length: int, count: int) -> np.ndarray:
    """Return at most ``count`` positions in [0, length) from the first to the last [shape=(K,), dtype=int64]."""
    return np.unique(np.linspace(0, max(0, length - 1), min(length, count)).round().astype(np.int64))


def frame_numbers(indices: Sequence[int] | np.ndarray, num_frames: int | None, owner: str) -> list[int]:
    """Return the argument ``indices`` as a list of frame numbers. See ``check_frame_numbers``.

    Raise ``UsageError`` if it is not one list of integers. numpy would turn 1.5, or a mask, into numbers.
    """
    chosen = np.asarray(indices)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise UsageError(
            f"indices: got {chosen.dtype} of shape {chosen.shape}, expected a list of frame numbers. Pass integers."
        )
    numbers: list[int] = chosen.tolist()
    check_frame_numbers("indices", numbers, num_frames, owner)
    return numbers


def check_frame_numbers(name: str, values: Iterable[int], num_frames: int | None, owner: str) -> None:
    """Raise ``IndexError`` for the first number that is not in [0, num_frames), None if more frames are to come.

    ``name`` is the parameter that holds the numbers, and ``owner`` has the frames, such as "video 'k'", for the
    message.
    """
    stop = math.inf if num_frames is None else num_frames
    for value in values:
        if not 0 <= value < stop:
            limit = "of at least 0" if num_frames is None else f"in [0, {num_frames})"
            raise IndexError(
                f"{name}: got {value}, expected a frame number {limit} for {owner}. Choose a frame that exists."
            )
