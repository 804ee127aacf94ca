"""Items as MP4 files of their sources' packets: nothing is decoded or encoded again."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from chordcache.errors import MediaError, UsageError, printable
from chordcache.formats.item import ExportItem
from chordcache.media.exact_frames import ExactFrames, FrameIndex
from chordcache.media.remux import in_memory, remux
from chordcache.media.source_file import OpenSource, open_source, real_folder
from chordcache.sources.media_file import naming

_MAX_INDICES = 1000
"""Number of sources whose frame times are in memory. When it is reached, all of them are dropped"""


class SourcePackets:
    """The sources of the videos of a cache, by the folder of each root, which links may lead out of if followed."""

    def __init__(self, folders: Mapping[str, str], *, follow_symlinks: bool) -> None:
        self._folders = folders
        self._follow_symlinks = follow_symlinks
        self._indices: dict[str, FrameIndex] = {}

    def mp4(self, item: ExportItem) -> tuple[bytes, np.ndarray]:
        """Return an MP4 file that shows the frames of an item, and their numbers in it [shape=(T,), dtype=int64].

        A whole file has all packets of its source, with the sound. A clip or a segment begins with the keyframe that
        its first frame needs, and does not have sound.

        Raises
        ------
        MediaError
            If the source is not the file that was cached, MP4 does not take its codecs, or shows other frames.
        """
        video = item.video
        folder = self._folders.get(video.root)
        if folder is None:
            raise UsageError(f"roots: got no folder of '{printable(video.root)}', expected one. Add it.")
        path = os.path.join(folder, video.path)
        inside = None if self._follow_symlinks else real_folder(folder)
        with naming(path), open_source(path, inside) as source:
            if source.state.identity != video.sidecar.source:
                raise MediaError("open", "changed", "it changed after it was cached")
            index = self._index(video.key, source)
            numbers = video.source_frames[item.frames]
            start = last = None
            if video.segment is not None or len(item.frames) < video.num_frames:
                key = int(index.seek_frames[numbers[0]])
                start, last = None if key < 0 else int(index.pts[key]), int(index.pts[numbers[-1]])
            data = remux(source.place, start, last)
            with in_memory(data) as place:
                return data, _numbers_in(place, index, numbers, start)

    def _index(self, key: str, source: OpenSource) -> FrameIndex:
        index = self._indices.get(key)
        if index is None:
            if len(self._indices) >= _MAX_INDICES:
                self._indices.clear()
            index = self._indices[key] = _index_of(source.place)
        return index


def _index_of(place: str) -> FrameIndex:
    with ExactFrames(place) as file:
        if file.sequential_reason is not None:
            raise MediaError("open", "clock", f"{file.sequential_reason}, so its packets cannot be cut")
        return file.frame_index


def _numbers_in(place: str, index: FrameIndex, numbers: np.ndarray, start: int | None) -> np.ndarray:
    """Return the numbers that frames of a source have in a copy, whose clock begins at time ``start`` of the source."""
    copy = _index_of(place)
    ticks = index.pts[numbers] - (index.pts[0] if start is None else start)
    wanted = np.round(ticks * float(index.time_base / copy.time_base)).astype(np.int64)
    shown = copy.pts - (copy.pts[0] if start is None else 0)
    places: np.ndarray = np.minimum(np.searchsorted(shown, wanted), len(shown) - 1)
    if not np.array_equal(shown[places], wanted):
        raise MediaError("open", "clock", "its packets show other frames in an MP4 file")
    return places
