"""Figures over all videos of a cache or an index, for ``info`` and the report page."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chordcache.arguments import names_arguments
from chordcache.index.index_files import read_index
from chordcache.read.cache import open_cache
from chordcache.read.selection import OtherSettings
from chordcache.read.video import Video
from chordcache.records import VideoRecord
from chordcache.storage import layout, sealed_json
from chordcache.storage.cache_header import read_header
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.quarantine import Quarantine


@names_arguments
def summarize(path: str | Path) -> dict[str, Any]:
    """Summarize a cache (a folder) or an index (a file).

    Returns
    -------
    dict
        Counts, ``duration_seconds`` of all videos, bytes, and counts by label, codec or error. Plain JSON data.

    Raises
    ------
    NotFoundError, DamageError, UsageError
        If ``path`` is not a cache and not an index, or cannot be read.
    """
    path = layout.cache_folder(path, "path")
    return _of_index(path) if os.path.isfile(path) else _of_cache(path)


def features_by_file(video: Video) -> dict[StoredFile, list[FeatureInfo]]:
    """Return the features of a video that are in each of its files."""
    by_file: dict[StoredFile, list[FeatureInfo]] = {}
    for info in video.sidecar.features:
        if info.file is not None:
            by_file.setdefault(info.file, []).append(info)
    return by_file


class Totals:
    """Counts over the videos that are added."""

    def __init__(self) -> None:
        self.num_videos = self.num_segments = self.num_frames = self.num_unlabelled = 0
        self.seconds = 0.0
        self.bytes: Counter[str] = Counter()
        """Bytes of the artefacts by features and tier, and of the sources of records"""
        self.absent: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.codecs: Counter[str] = Counter()
        self.completeness: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """Causes of the errors of records"""

    def add_video(self, video: Video) -> None:
        """Count a cached video."""
        self.num_videos += 1
        self.num_frames += video.num_frames
        self.seconds += video.duration_seconds
        self._add_labels(video.label, video.labels)
        absent = (info for info in video.sidecar.features if info.file is None)
        self.absent.update(f"{info.feature} in {info.tier}: {info.absent}" for info in absent)
        for file, infos in features_by_file(video).items():
            names = ", ".join(info.feature for info in infos)
            self.bytes[f"{names} in {infos[0].tier}"] += file.num_bytes

    def add_record(self, record: VideoRecord) -> None:
        """Count an item of an index that is not cached."""
        self.num_videos += 1
        self.num_segments += record.segment is not None
        self._add_labels(record.label, record.labels)
        if record.packets is not None:
            self.num_frames += record.packets.num_frames
            self.seconds += record.packets.duration_seconds
            self.completeness.update(filter(None, [record.packets.completeness]))
        if record.identity is not None:
            self.bytes["source files"] += record.identity.size
        if record.error_cause:
            self.errors[record.error_cause] += 1
        elif record.header is not None:
            self.codecs[record.header.codec] += 1

    def _add_labels(self, label: str | None, labels: Sequence[str]) -> None:
        names = {*labels, *([label] if label else [])}
        self.labels.update(names)
        self.num_unlabelled += not names

    def by_label(self) -> dict[str, int]:
        """Return the number of videos with each label, the most first, and of those without one."""
        counts = self.labels + Counter({"(none)": self.num_unlabelled})
        return dict(counts.most_common())


def _of_cache(path: Path) -> dict[str, Any]:
    header = read_header(path)
    totals = Totals()
    with open_cache(path) as cache:
        for video in cache:
            totals.add_video(video)
        others = OtherSettings(cache).sentence(cache.keys())
    return {
        "format_version": sealed_json.FORMAT_VERSION,
        "num_videos": totals.num_videos,
        "num_frames": totals.num_frames,
        "duration_seconds": round(totals.seconds, 6),
        "bytes": dict(totals.bytes),
        "absent": dict(totals.absent.most_common()),
        "labels": totals.by_label(),
        "num_quarantined": len(Quarantine(path, {})),
        **({"other_settings": others} if others else {}),
        "roots": dict(header.roots),
        "features": {tier: list(names) for tier, names in header.features.items()},
        "config": dict(header.config),
    }


def _of_index(path: Path) -> dict[str, Any]:
    index = read_index(path)
    totals = Totals()
    for record in index:
        totals.add_record(record)
    return {
        "level": index.level,
        "num_videos": totals.num_videos,
        "num_segments": totals.num_segments,
        "num_labels": len(totals.labels),
        "broken": dict(totals.errors.most_common()),
        "num_frames": totals.num_frames,
        "duration_seconds": round(totals.seconds, 6),
        "num_bytes": totals.bytes.total(),
        "codecs": dict(totals.codecs.most_common()),
        "completeness": dict(totals.completeness.most_common()),
        "labels": totals.by_label(),
        "roots": index.roots,
    }
