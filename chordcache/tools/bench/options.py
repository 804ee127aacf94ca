"""Options of a measurement, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from chordcache.arguments import check_at_least, check_positive
from chordcache.errors import UsageError

NUM_ROUNDS = 5
"""Rounds of a measurement. Each row is measured once in each, so that a slow minute of the machine hits all rows."""

SLOW_ROUNDS = 2.0
"""A row has batches of one clip if a full batch would take longer than this many rounds"""


@dataclass(frozen=True)
class BenchOptions:
    """Options of ``bench``.

    Raises
    ------
    UsageError
        If a value is out of range.
    """

    batch_size: int = 8
    """Clips in a batch"""
    num_frames: int = 16
    """Frames in a clip"""
    stride: int = 4
    """Distance of the frames of a clip, [frames]"""
    size: int = 224
    """[pixels] side of the square center crop"""
    workers: tuple[int, ...] = (0, 2)
    """Numbers of worker processes of a DataLoader to try"""
    prefetch: tuple[int, ...] = (2,)
    """Numbers of batches that are made ahead to try: for each worker of a DataLoader, or in all by a ClipLoader"""
    threads: tuple[int, ...] = (2,)
    """Numbers of threads of a ClipLoader to try"""
    step_ms: float = 50.0
    """[milliseconds] duration of the training step whose waiting is measured"""
    seconds: float = 5.0
    """[seconds] time that each row is measured for, over all rounds, without its start"""
    cold: bool = False
    """True to measure also with files that are not in memory"""

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, num_frames=self.num_frames, stride=self.stride, size=self.size)
        check_positive(step_ms=self.step_ms, seconds=self.seconds)
        for name, least in (("workers", 0), ("prefetch", 1), ("threads", 1)):
            values = getattr(self, name)
            if not values:
                raise UsageError(f"{name}: got none, expected at least one number")
            for value in values:
                check_at_least(least, **{name: value})
