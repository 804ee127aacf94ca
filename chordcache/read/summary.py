"""``info``: a summary of a cache or an index, in a few figures."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from chordcache.index.files import read_index
from chordcache.read.cache import open_cache
from chordcache.records import FeatureInfo
from chordcache.storage import sealed_json
from chordcache.storage.cache_header import read_header
from chordcache.storage.quarantine import Quarantine


def summarize(path: str | Path) -> dict[str, Any]:
    """Summarize a cache (a folder) or an index (a file).

    Returns
    -------
    dict
        Counts, ``hours`` [hours of video], ``bytes``, and counts by label, codec or error. Plain JSON data.

    Raises
    ------
    NotFoundError
        If ``path`` is not a cache and not an index.
    DamageError, FormatVersionError, UsageError
        If the cache or the index cannot be read.
    """
    path = Path(path)
    return _of_index(path) if os.path.isfile(path) else _of_cache(path)


def _of_cache(path: Path) -> dict[str, Any]:
    header = read_header(path)
    labels: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    absent: Counter[str] = Counter()
    num_videos = num_frames = num_damaged = num_missing = 0
    seconds = 0.0
    with open_cache(path) as cache:
        for video in cache:
            num_videos += 1
            num_frames += video.num_frames
            seconds += video.duration_seconds
            if video.damage is not None:
                num_damaged += 1
                num_missing += video.damage.num_missing
            labels[video.label or "(none)"] += 1
            by_file: dict[str, list[FeatureInfo]] = {}
            for info in video.sidecar.features:
                if info.file is None:
                    absent[f"{info.feature} in {info.tier}: {info.absent}"] += 1
                else:
                    by_file.setdefault(info.file, []).append(info)
            for infos in by_file.values():
                names = ", ".join(info.feature for info in infos)
                num_bytes[f"{names} in {infos[0].tier}"] += infos[0].num_bytes
    return {
        "format_version": sealed_json.FORMAT_VERSION,
        "videos": num_videos,
        "frames": num_frames,
        "hours": round(seconds / 3600, 4),
        "bytes": dict(num_bytes),
        "absent": dict(absent.most_common()),
        "labels": dict(labels.most_common()),
        "quarantined": len(Quarantine(path, {})),
        "damaged": {"videos": num_damaged, "frames missing": num_missing} if num_damaged else {},
        "roots": dict(header.roots),
        "features": {tier: list(names) for tier, names in header.features.items()},
        "config": dict(header.config),
    }


def _of_index(path: Path) -> dict[str, Any]:
    index = read_index(path)
    labels: Counter[str] = Counter()
    codecs: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    num_frames = num_bytes = 0
    seconds = 0.0
    for record in index:
        labels[record.label or "(none)"] += 1
        num_bytes += record.identity.size if record.identity else 0
        if record.error_cause:
            errors[record.error_cause] += 1
        elif record.header:
            codecs[record.header.codec] += 1
        if record.packets:
            num_frames += record.packets.num_frames
            seconds += record.packets.duration_seconds
    return {
        "level": index.level,
        "videos": len(index),
        "broken": dict(errors.most_common()),
        "frames_expected": num_frames,
        "hours": round(seconds / 3600, 4),
        "bytes": num_bytes,
        "codecs": dict(codecs.most_common()),
        "labels": dict(labels.most_common()),
        "roots": index.roots,
    }
