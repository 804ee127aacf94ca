"""All facts of one cached video as plain data, and the list of the videos of a cache."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chordcache.amounts import human_bytes
from chordcache.errors import DamageError, FeatureAbsentError, printable
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.records import FeatureInfo, to_json
from chordcache.storage.cache_header import read_header


@dataclass(frozen=True)
class ListedVideo:
    """One line of ``chordcache ls``."""

    key: str
    path: str
    """Path relative to the root"""
    seconds: float
    """Duration"""
    num_frames: int
    width: int
    """[pixels] of the cached frames"""
    height: int
    """[pixels] of the cached frames"""
    num_bytes: int
    """Size of the video's files"""
    label: str | None


def iter_listed(cache: Cache, label: str | None = None) -> Iterator[ListedVideo]:
    """Yield the videos of a cache in the order of their keys. Memory use does not grow with their number.

    Parameters
    ----------
    cache : Cache
        The cache.
    label : str, optional
        Only videos that have this label, alone or among others.
    """
    for video in cache:
        if has_label(video, label):
            yield ListedVideo(
                video.key, video.path, round(video.duration_seconds, 6), video.num_frames, video.width, video.height,
                num_bytes_of(video), video.label or (", ".join(video.labels) or None),
            )  # fmt: skip


def has_label(video: Video, label: str | None) -> bool:
    """Return whether a video has a label, alone or among others. Each has None."""
    return label is None or label == video.label or label in video.labels


def num_bytes_of(video: Video) -> int:
    """Return the size of the files of a video, [bytes]."""
    return sum({info.file: info.num_bytes for info in video.sidecar.features if info.file is not None}.values())


def describe_video(video: Video) -> dict[str, Any]:
    """Return all facts of a video as plain JSON data. Facts that it does not have are None or empty."""
    sidecar = video.sidecar
    root = read_header(video.cache_path).roots.get(video.root)
    return {
        "key": video.key,
        "path": video.path,
        "root": video.root,
        "source": None if root is None else f"{root}/{video.path}",
        "source_bytes": sidecar.source.size,
        "source_modified": _when(sidecar.source.mtime_ns),
        "segment": to_json(video.segment) if video.segment else None,
        "frames": video.num_frames,
        "width": video.width,
        "height": video.height,
        "display_width": sidecar.display_width,
        "display_height": sidecar.display_height,
        "bucket": None if video.bucket is None else list(video.bucket),
        "display_crop": None if sidecar.display_crop is None else list(sidecar.display_crop),
        "start_seconds": video.start_seconds,
        "duration_seconds": video.duration_seconds,
        "timestamp_source": sidecar.timestamp_source,
        "keyframes": _num_keyframes(video),
        "frames_skipped": sidecar.num_frames_skipped,
        "notes": list(sidecar.notes),
        "bytes": num_bytes_of(video),
        "features": [_feature(info) for info in sidecar.features],
        "damage": to_json(video.damage) if video.damage else None,
        "label": video.label,
        "labels": list(video.labels),
        "caption": video.caption,
        "captions": list(video.captions),
        "extra": dict(video.extra),
        "show": show_command(video),
    }


def show_command(video: Video) -> str:
    """Return the command that draws a video."""
    return f"chordcache show {shlex.quote(printable(video.cache_path))} {video.key}"


def feature_line(info: FeatureInfo) -> str:
    """Return a feature in one line for people, such as "float16 (131, 256, 454, 2), 12.3 MB"."""
    if info.absent is not None:
        return f"absent: {info.absent}"
    return f"{info.dtype} {info.shape}, {human_bytes(info.num_bytes)}"


def _when(mtime_ns: int) -> str | None:
    try:
        return datetime.fromtimestamp(mtime_ns // 10**9, UTC).isoformat()
    except (OverflowError, ValueError, OSError):  # a file may state any number
        return None


def _num_keyframes(video: Video) -> int | None:
    """Return the number of keyframes, or None if the file that has them is damaged or does not exist."""
    try:
        return len(video.keyframes)
    except (DamageError, FeatureAbsentError, OSError):
        return None


def _feature(info: FeatureInfo) -> dict[str, Any]:
    return {
        "feature": info.feature,
        "tier": info.tier,
        "file": info.file,
        "shape": list(info.shape),
        "dtype": info.dtype,
        "bytes": info.num_bytes,
        "rows": dict(info.num_rows),
        "params": dict(info.params),
        "facts": dict(info.facts),
        "absent": info.absent,
    }
