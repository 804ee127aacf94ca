"""The videos that a measurement draws its clips from: some of a cache, or a small cache made of some of an index."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chordcache.building.build import build
from chordcache.config.config import Config
from chordcache.errors import UsageError, printable
from chordcache.index.index_files import IndexWriter, read_index
from chordcache.read.cache import open_cache
from chordcache.read.video import Video
from chordcache.records import Segment, VideoRecord
from chordcache.storage.cache_header import read_header

MAX_VIDEOS = 64
"""Number of videos of a cache that clips are drawn from, at most"""

MAX_BUILT = 8
"""Number of videos of an index that are cached for the measurement, at most"""

LONG_SECONDS = 30.0
"""Length of the part that is cached of a longer video of an index, [seconds]"""


@dataclass(frozen=True)
class Sample:
    """Some videos of a cache."""

    cache: str
    keys: tuple[str, ...]
    paths: tuple[str, ...]
    """Absolute path of each video's source"""
    no_source: str | None
    """Reason why the sources cannot be read, None if they can"""


def sample_of_cache(cache: Path, roots: Mapping[str, str] | None) -> Sample:
    """Choose videos of a cache at random, the same ones each time.

    Raises
    ------
    NotFoundError, DamageError, FormatVersionError
        If the cache cannot be read.
    UsageError
        If it does not have videos with frames.
    """
    folders = {**read_header(cache).roots, **(roots or {})}
    with open_cache(cache) as opened:
        positions = sorted(random.Random(0).sample(range(len(opened)), min(len(opened), MAX_VIDEOS)))
        videos = [video for video in map(opened.__getitem__, positions) if _has_frames(video)]
    if not videos:
        raise UsageError(
            f"path: got cache '{printable(cache)}' without frames of any video, expected at least one. "
            "Build it with 'chordcache build INDEX --tier lmdb'."
        )
    paths = tuple(os.path.join(folders.get(video.root, ""), video.path) for video in videos)
    return Sample(str(cache), tuple(video.key for video in videos), paths, _why_no_source(videos, paths))


def build_sample(
    index: Path, work: Path, config: str | Path | Config | None, roots: Mapping[str, str] | None
) -> tuple[Path, list[str]]:
    """Build a small cache of some videos of an index. Return its folder, and remarks for people.

    Raises
    ------
    UsageError
        If no video of the index can be cached.
    """
    opened = read_index(index)
    chosen: list[VideoRecord] = []
    drawn = random.Random(0)
    num_seen = num_cut = 0
    for record in opened:
        if record.error is not None:
            continue
        num_seen += 1
        place = len(chosen) if len(chosen) < MAX_BUILT else drawn.randrange(num_seen)  # reservoir sampling
        if place < MAX_BUILT:
            chosen[place : place + 1] = [record]
    for place, record in enumerate(chosen):
        seconds = record.packets.duration_seconds if record.packets else 0.0
        if record.segment is None and seconds > LONG_SECONDS:
            start = round((seconds - LONG_SECONDS) / 2, 3)
            chosen[place] = record.replace(segment=Segment(start, start + LONG_SECONDS), content=None)
            num_cut += 1
    part = work / "part.jsonl"
    with IndexWriter(
        part,
        roots={**opened.roots, **(roots or {})},
        level=opened.level,
        follow_symlinks=opened.follow_symlinks,
        columns=opened.columns,
    ) as writer:
        for record in chosen:
            writer.write(record)
    cache = work / "cache"
    if chosen:
        build(part, cache, features=("frames",), config=config)
    if not chosen or not len(open_cache(cache)):
        raise UsageError(
            f"path: got index '{printable(index)}' without a video that can be cached, expected at least one. "
            "See 'chordcache info INDEX'."
        )
    notes = [f"A temporary cache of {len(chosen)} of the {num_seen} videos of the index was built for the measurement."]
    if num_cut:
        notes.append(f"Of {num_cut} longer videos, {LONG_SECONDS:g} s from the middle were cached.")
    return cache, notes


def _has_frames(video: Video) -> bool:
    return any(info.feature == "frames" and info.file is not None for info in video.sidecar.features)


def _why_no_source(videos: Sequence[Video], paths: Sequence[str]) -> str | None:
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        return (
            f"the sources of {len(missing)} of {len(paths)} videos are missing, such as '{printable(missing[0])}'. "
            "Use --root if they moved"
        )
    for video, path in zip(videos, paths, strict=True):
        if os.path.getsize(path) != video.sidecar.source.size:
            return f"'{printable(path)}' changed since it was cached"
    return None
