"""The options of a measurement, the videos that it draws clips from, and the ways to make batches that it compares."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chordcache.amounts import counted
from chordcache.arguments import check_at_least, check_positive
from chordcache.errors import UsageError, printable
from chordcache.media.source_file import identity_or_none
from chordcache.object_stores.client import is_in_store
from chordcache.read.cache import open_cache
from chordcache.read.video import Video
from chordcache.storage.cache_header import read_header, roots_now

NUM_ROUNDS = 5
"""Rounds of a measurement. Each way is measured once in each, so that a slow minute of the machine hits all of them."""

NUM_CLIPS = 20_000
"""Number of clips that a pass has at least"""

MAX_VIDEOS = 64
"""Number of videos of a cache that clips are drawn from, at most"""

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
class VideoSample:
    """Some videos of a cache."""

    cache: str
    keys: tuple[str, ...]
    paths: tuple[str, ...]
    """Absolute path of each video's source"""
    no_source: str | None
    """Reason why the sources cannot be read, None if they can"""

    def at(self, places: Sequence[int]) -> VideoSample:
        """Return the videos at some places."""
        return replace(self, keys=tuple(self.keys[n] for n in places), paths=tuple(self.paths[n] for n in places))


@dataclass(frozen=True)
class Way:
    """One way to make batches. Picklable and hashable."""

    reader: str
    """Key of ``SOURCES``, or "cache" """
    loader: str
    """"DataLoader" or "ClipLoader" """
    sample: VideoSample
    """Videos that clips are drawn from"""
    options: BenchOptions

    @property
    def name(self) -> str:
        """Name of the reader in the table."""
        return SOURCES.get(self.reader, self.reader)

    @property
    def clips_per_video(self) -> int:
        """Number of clips of each video in a pass."""
        return -(-NUM_CLIPS // len(self.sample.keys))


def sample_of_cache(cache: str | Path, roots: Mapping[str, str] | None) -> VideoSample:
    """Choose videos of a cache at random, the same ones each time. Raises ``UsageError`` if none has frames."""
    with open_cache(cache) as opened:
        folders = roots_now(read_header(opened.path).roots, roots)
        positions = sorted(random.Random(0).sample(range(len(opened)), min(len(opened), MAX_VIDEOS)))
        chosen = (opened[position] for position in positions)
        videos = [video for video in chosen if any(i.feature == "frames" and i.file for i in video.sidecar.features)]
    if not videos:
        raise UsageError(
            f"cache: got '{printable(cache)}' without frames of any video, expected at least one. "
            "Build it with 'chordcache build INDEX --tier lmdb'."
        )
    paths = tuple(os.path.join(folders.get(video.root, ""), video.path) for video in videos)
    return VideoSample(str(opened.path), tuple(video.key for video in videos), paths, _why_no_source(videos, paths))


def _why_no_source(videos: Sequence[Video], paths: Sequence[str]) -> str | None:
    if any(map(is_in_store, paths)):
        return "the sources are in an object store"
    identities = [identity_or_none(path) for path in paths]
    missing = [path for path, identity in zip(paths, identities, strict=True) if identity is None]
    if missing:
        return (
            f"the sources of {len(missing)} of {counted(len(paths), 'video')} are missing, such as "
            f"'{printable(missing[0])}'. Use --root if they moved"
        )
    for video, path, identity in zip(videos, paths, identities, strict=True):
        if identity is not None and identity.size != video.sidecar.source.size:
            return f"'{printable(path)}' changed since it was cached"
    return None
