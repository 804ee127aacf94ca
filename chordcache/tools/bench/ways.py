"""The options of a measurement, and the ways to make batches that it compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chordcache.arguments import check_at_least, check_positive

NUM_ROUNDS = 5
"""Rounds of a measurement. Each way is measured once in each, so that a slow minute of the machine hits all of them."""

NUM_CLIPS = 20_000
"""Number of clips that a pass has at least"""

SOURCES: Mapping[str, str] = {
    "opencv": "OpenCV (seek for each frame)",
    "pyav": "PyAV (one seek)",
    "mapped_mp4": "mapped MP4",
    "torchcodec": "torchcodec",
}
"""Reader of the sources to its name in the table"""


@dataclass(frozen=True)
class BenchOptions:
    """Options of ``bench``. Raises ``UsageError`` if a value is out of range."""

    batch_size: int = 8
    """Clips in a batch"""
    num_frames: int = 16
    """Frames in a clip"""
    stride: int = 4
    """Distance of the frames of a clip, [frames]"""
    size: int = 224
    """[pixels] side of the square center crop"""
    workers: int = 2
    """Worker processes of each DataLoader, and threads of the ClipLoader, which has at least one"""
    seconds: float = 5.0
    """[seconds] time that each way is measured for, over all rounds, without its start"""

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, num_frames=self.num_frames, stride=self.stride, size=self.size)
        check_at_least(0, workers=self.workers)
        check_positive(seconds=self.seconds)

    @property
    def num_jobs(self) -> int:
        """Number of processes or threads that read clips."""
        return max(1, self.workers)


@dataclass(frozen=True)
class Way:
    """One way to make batches. Picklable and hashable."""

    reader: str
    """Key of ``SOURCES``, or "cache" """
    loader: str
    """"DataLoader" or "ClipLoader" """
    cache: str
    keys: tuple[str, ...]
    """Videos of the cache that clips are drawn from"""
    paths: tuple[str, ...]
    """Absolute path of each video's source"""
    options: BenchOptions

    @property
    def name(self) -> str:
        """Name of the reader in the table."""
        return SOURCES.get(self.reader, self.reader)

    @property
    def clips_per_video(self) -> int:
        """Number of clips of each video in a pass."""
        return -(-NUM_CLIPS // len(self.keys))

    def of(self, places: Sequence[int]) -> Way:
        """Return the way for the videos at some places."""
        return replace(self, keys=tuple(self.keys[n] for n in places), paths=tuple(self.paths[n] for n in places))
