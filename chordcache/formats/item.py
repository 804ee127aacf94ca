"""One sample of an export, and the facts about it."""

from __future__ import annotations

from typing import Any, NamedTuple

from chordcache.json_records import to_json
from chordcache.read.video import Video


class ExportItem(NamedTuple):
    """One sample of an export: some frames of a video."""

    name: str
    """The key of the video, and the number of the clip, such as "bikes-0123456789abcdef-00002\""""
    video: Video
    frames: range
    """Frame numbers"""


def facts(item: ExportItem) -> dict[str, Any]:
    """Return the facts about an item as plain JSON data: its source, its annotations, and the times of its frames."""
    video = item.video
    return {
        "key": video.key,
        "root": video.root,
        "path": video.path,
        **{name: value for name, value in to_json(video.sidecar.about).items() if value},
        "width": video.width,
        "height": video.height,
        "source_frames": video.source_frames[item.frames].tolist(),
        "pts_seconds": video.pts_seconds[item.frames].tolist(),
    }
