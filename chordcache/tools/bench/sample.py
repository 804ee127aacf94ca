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
from chordcache.records import FeatureInfo, Segment, VideoRecord
from chordcache.storage.artefacts.open_files import forget
from chordcache.storage.cache_header import read_header

MAX_VIDEOS = 64
"""Number of videos of a cache that clips are drawn from, at most"""

MAX_BUILT = 8
"""Number of videos of an index that are cached for the measurement, at most"""

LONG_SECONDS = 30.0
"""Length of the part that is cached of a longer video of an index, [seconds]"""

Group = tuple[str, str]
"""Tier and codec"""


@dataclass(frozen=True)
class Sample:
    """Some videos of a cache."""

    cache: str
    keys: tuple[str, ...]
    paths: tuple[str, ...]
    """Absolute path of each video's source"""
    groups: Mapping[Group, tuple[str, ...]]
    """Tier and codec to the keys of the videos that have such frames"""
    files: Mapping[str, tuple[str, ...]]
    """Reader of frames to the files that it reads, see ``reader_name``"""
    bytes_per_frame: Mapping[str, float]
    """Reader of frames to the size of its files for a frame, [bytes]. Left out if the files hold more than frames"""
    index: str
    """Index of the videos, in the order of ``keys``"""
    no_source: str | None
    """Reason why the sources cannot be read, None if they can"""


def reader_name(tier: str, codec: str) -> str:
    """Return the name of the reader of a tier and codec."""
    return f"cache: {tier}, {codec}"


def sample_of_cache(cache: Path, work: Path, roots: Mapping[str, str] | None) -> Sample:
    """Choose videos of a cache at random, the same ones each time.

    Parameters
    ----------
    cache : Path
        The cache. It is only read.
    work : Path
        Folder for an index of the videos.
    roots : mapping of str to str, optional
        Label of a root to the folder where its videos are now.

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
        videos = [video for video in map(opened.__getitem__, positions) if _frames_of(video)]
    if not videos:
        raise UsageError(
            f"path: got cache '{printable(cache)}' without frames of any video, expected at least one. "
            "Build it with 'chordcache build INDEX --tier lmdb'."
        )
    paths = [os.path.join(folders.get(video.root, ""), video.path) for video in videos]
    groups: dict[Group, list[str]] = {}
    for video in videos:
        for info in _frames_of(video):
            groups.setdefault((info.tier, str(info.params.get("codec", "unknown"))), []).append(video.key)
    files, num_bytes = _files_of(cache, videos)
    no_source = _why_no_source(videos, paths)
    if no_source is None:
        files["source"] = tuple(dict.fromkeys(paths))
        if all(video.segment is None for video in videos):
            num_bytes["source"] = sum(map(os.path.getsize, paths)) / sum(
                int(video.source_frames[-1]) + 1 for video in videos
            )
    index = work / "sample.jsonl"
    with IndexWriter(index, roots=folders, level=None, follow_symlinks=True) as writer:
        for video in videos:
            sidecar = video.sidecar
            writer.write(VideoRecord(video.root, video.path, sidecar.source, segment=video.segment))
    keys = tuple(video.key for video in videos)
    for name in (name for found in files.values() for name in found):
        forget(Path(name))  # pages that a process maps cannot be dropped for cold rounds
    named = {group: tuple(names) for group, names in groups.items()}
    return Sample(str(cache), keys, tuple(paths), named, files, num_bytes, str(index), no_source)


def build_sample(
    index: Path, work: Path, tiers: Sequence[str], config: str | Path | Config | None, roots: Mapping[str, str] | None
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
        build(part, cache, tiers=tiers, config=config)
    if not chosen or not len(open_cache(cache)):
        raise UsageError(
            f"path: got index '{printable(index)}' without a video that can be cached, expected at least one. "
            "See 'chordcache info INDEX'."
        )
    notes = [f"A temporary cache of {len(chosen)} of the {num_seen} videos of the index was built for the measurement."]
    if num_cut:
        notes.append(f"Of {num_cut} longer videos, {LONG_SECONDS:g} s from the middle were cached.")
    return cache, notes


def _frames_of(video: Video) -> list[FeatureInfo]:
    """Return the frames of a video in all tiers."""
    return [info for info in video.sidecar.features if info.feature == "frames" and info.file is not None]


def _files_of(cache: Path, videos: Sequence[Video]) -> tuple[dict[str, tuple[str, ...]], dict[str, float]]:
    """Return the files of each reader of the cache, and their bytes a frame."""
    sizes: dict[str, dict[str, tuple[int, int]]] = {}
    mixed = set()
    for video in videos:
        for info in _frames_of(video):
            name = reader_name(info.tier, str(info.params.get("codec", "unknown")))
            size = info.num_bytes, video.num_frames
            sizes.setdefault(name, {})[str(cache / str(info.file))] = size
            if any(other.file == info.file and other.feature != "frames" for other in video.sidecar.features):
                mixed.add(name)
    num_bytes = {
        name: sum(size for size, _ in files.values()) / max(1, sum(frames for _, frames in files.values()))
        for name, files in sizes.items()
        if name not in mixed
    }
    return {name: tuple(files) for name, files in sizes.items()}, num_bytes


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
