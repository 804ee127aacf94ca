"""All facts of one cached video as plain data, and the list of the videos of a cache or an index."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chordcache.amounts import counted, first_few, human_bytes, shortened
from chordcache.errors import DamageError, printable
from chordcache.index.index_files import read_index
from chordcache.json_records import to_json
from chordcache.read.cache import find_video, open_cache
from chordcache.read.video import Video
from chordcache.records import Segment, VideoRecord
from chordcache.storage.cache_header import read_header
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_of

_MAX_ITEMS = 20
"""Number of labels or captions that are listed for people"""

_MAX_LETTERS = 400
"""Number of letters of a caption or of another text for people"""


@dataclass(frozen=True)
class ListedVideo:
    """One line of ``chordcache ls``."""

    key: str
    path: str
    """Path relative to the root"""
    duration_seconds: float | None
    """None if the index does not state it. So are the next facts"""
    num_frames: int | None
    width: int | None
    """[pixels] of the cached frames, or of the source in an index"""
    height: int | None
    num_bytes: int | None
    """Size of the video's files, or of the source"""
    label: str | None
    """Label, or labels with commas between them"""
    segment: Mapping[str, Any] | None = None
    """Part of the file, as the arguments of ``Segment``"""
    episode: int | None = None
    """Number of the episode of a LeRobot dataset"""

    @property
    def part(self) -> str:
        """Episode and segment for people, "" if there are none."""
        episode = [] if self.episode is None else [f"episode {self.episode}"]
        return ", ".join([*episode, *([str(Segment(**self.segment))] if self.segment else [])])


def iter_listed(path: str, video: str | None = None) -> Iterator[ListedVideo]:
    """Yield the videos of a cache in the order of their keys, one of them, or the items of an index, one at a time."""
    if os.path.isfile(path):
        return map(_listed, read_index(path))
    cache = open_cache(path)
    return map(_listed, cache if video is None else [find_video(cache, video)])


def _listed(item: Video | VideoRecord) -> ListedVideo:
    seconds: float | None
    counts: tuple[int | None, int | None, int | None, int | None]
    if isinstance(item, Video):
        key, seconds = item.key, item.duration_seconds
        counts = item.num_frames, item.width, item.height, item.sidecar.num_bytes()
    else:
        key, seconds, header = key_of(item), item.known_seconds, item.header
        num_frames = item.packets.num_frames if item.packets and not item.segment else None
        size = (header.display_width, header.display_height) if header else (None, None)
        counts = num_frames, *size, item.identity.size if item.identity else None
    return ListedVideo(
        key, item.path, seconds and round(seconds, 6), *counts, item.label or (", ".join(item.labels) or None),
        to_json(item.segment) if item.segment else None, item.extra.get("episode_index"),
    )  # fmt: skip


def describe_video(video: Video) -> dict[str, Any]:
    """Return all facts of a video as plain JSON data. Facts that it does not have are None or empty."""
    sidecar = video.sidecar
    width, height = sidecar.display_size or (None, None)
    root = read_header(video.cache_path).roots.get(video.root)
    return {
        "key": video.key,
        "path": video.path,
        "root": video.root,
        "source": None if root is None else f"{root}/{video.path}",
        "num_source_bytes": sidecar.source.size,
        "source_modified": _when(sidecar.source.mtime_ns),
        "segment": to_json(video.segment) if video.segment else None,
        "num_frames": video.num_frames,
        "width": video.width,
        "height": video.height,
        "display_width": width,
        "display_height": height,
        "bucket": None if video.bucket is None else list(video.bucket),
        "display_crop": None if sidecar.display_crop is None else list(sidecar.display_crop),
        "start_seconds": video.start_seconds,
        "duration_seconds": video.duration_seconds,
        "timestamp_source": sidecar.timestamp_source,
        "num_keyframes": _num_keyframes(video),
        "num_frames_skipped": sidecar.num_frames_skipped,
        "notes": list(sidecar.notes),
        "num_bytes": sidecar.num_bytes(),
        "features": [_feature(info) for info in sidecar.features],
        "label": video.label,
        "labels": list(video.labels),
        "caption": video.caption,
        "captions": list(video.captions),
        "extra": dict(video.extra),
        "show": f"chordcache show {shlex.quote(printable(video.cache_path))} {video.key}",
    }


def rows_of_facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of the facts for people. Texts are cut. ``facts`` is the result of ``describe_video``."""
    for name in ("key", "path", "root", "source"):
        yield name, str(facts[name])
    yield "source file", f"{human_bytes(facts['num_source_bytes'])}, modified {facts['source_modified']}"
    if facts["segment"]:
        yield "segment", json.dumps(facts["segment"])
    keyframes = facts["num_keyframes"]
    known = "keyframes unknown" if keyframes is None else counted(keyframes, "keyframe")
    yield "frames", f"{facts['num_frames']}, {known}"
    shown = f"{facts['display_width']} x {facts['display_height']}"
    yield "size", f"{facts['width']} x {facts['height']}, shown as {shown}"
    if facts["bucket"]:
        _, _, width, height = facts["display_crop"]
        yield "bucket", f"{facts['bucket']}, cut to {width:.0f} x {height:.0f}"
    start, duration = facts["start_seconds"], facts["duration_seconds"]
    yield "time", f"{start:.6g} s to {start + duration:.6g} s, {duration:.6g} s ({facts['timestamp_source']})"
    if facts["num_frames_skipped"]:
        yield "skipped", f"{counted(facts['num_frames_skipped'], 'frame')} before the first keyframe"
    for note in facts["notes"]:
        yield "note", note
    yield "bytes", human_bytes(facts["num_bytes"])
    for feature in facts["features"]:
        yield f"  {feature['feature']}, {feature['tier']}", _feature_text(feature)
    for name in ("label", "caption"):
        if facts[name] is not None:
            yield name, _cut(facts[name])
    for name in ("labels", "captions"):
        for text in first_few(facts[name], _MAX_ITEMS):
            yield name, _cut(text)
    for name, value in facts["extra"].items():
        yield f"extra {name}", _cut(value if isinstance(value, str) else json.dumps(value))
    yield "show", facts["show"]


def _cut(text: str) -> str:
    return shortened(text, _MAX_LETTERS)


def _feature_text(feature: Mapping[str, Any]) -> str:
    if feature["absent"] is not None:
        return f"absent: {feature['absent']}"
    shape = " x ".join(map(str, feature["shape"]))
    return f"{feature['dtype']} {shape}, {human_bytes(feature['num_bytes'])}, {feature['file']}"


def _when(mtime_ns: int) -> str | None:
    if mtime_ns < 0:  # the tag of an object
        return None
    try:
        return datetime.fromtimestamp(mtime_ns // 10**9, UTC).isoformat()
    except (OverflowError, ValueError, OSError):  # a file may state any number
        return None


def _num_keyframes(video: Video) -> int | None:
    """Return the number of keyframes, or None if the file that has them is damaged or does not exist."""
    try:
        return len(video.keyframes)
    except (DamageError, OSError):
        return None


def _feature(info: FeatureInfo) -> dict[str, Any]:
    return {
        "feature": info.feature,
        "tier": info.tier,
        "file": info.file.name if info.file else None,
        "shape": list(info.shape),
        "dtype": info.dtype,
        "num_bytes": info.file.num_bytes if info.file else 0,
        "num_rows": dict(info.num_rows),
        "params": dict(info.params),
        "facts": dict(info.facts),
        "absent": info.absent,
    }
