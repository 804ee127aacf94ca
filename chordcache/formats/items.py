"""The samples of an export: clips of the cached videos, or whole videos."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from chordcache.arguments import check_at_least
from chordcache.digests import hex64
from chordcache.formats.item import ExportItem
from chordcache.formats.source_packets import SourcePackets
from chordcache.media import jpeg, planes
from chordcache.read.cache import Cache
from chordcache.read.selection import OtherSettings, Videos, positions_of, select_keys
from chordcache.records import SERIES
from chordcache.storage.cache_header import read_header, roots_now
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.row_clock import CLOCK_FACTS, has_times

_BLOCK = 64
"""Number of frames that are in memory at a time"""

_QUALITY = 95
"""Quality of the JPEGs of frames that are cached in another codec"""


class Items:
    """All samples of an export, in the order of keys and of time. The arguments are those of ``export``.

    The frames after the last whole clip of a video are left out.
    """

    def __init__(
        self,
        cache: Cache,
        videos: Videos | None,
        *,
        where: Mapping[str, str] | None = None,
        clip: int | None,
        stride: int,
        frames: str,
        roots: Mapping[str, str],
    ) -> None:
        check_at_least(1, clip=1 if clip is None else clip, stride=stride)
        self.cache, self._clip, self._stride = cache, clip, stride
        header = read_header(cache.path)
        self.columns = {name: header.columns.get(name, "str") for name in cache.catalog.annotation_names().extra}
        """Extra columns of the items, and their types"""
        folders = roots_now(header.roots, roots, opens=frames == "mp4")
        self.packets: SourcePackets | None = None
        """Sources, if items have their packets"""
        if frames == "mp4":
            self.packets = SourcePackets(folders, follow_symlinks=header.follow_symlinks)
        self._has_frames = frames == "jpg"
        keys = cache.keys() if videos is None and not where else select_keys(cache, videos, where=where)
        self._keys = OtherSettings(cache).left(list(dict.fromkeys(keys)))  # names of files and samples are distinct
        num_frames = cache.num_frames[positions_of(cache, np.array(self._keys, np.bytes_))].astype(np.int64)
        self.most_frames = int(num_frames.max(initial=0))
        """Number of frames of the longest video"""
        whole = np.ones_like(num_frames)
        self._counts = whole if clip is None else np.maximum(0, (num_frames + stride - 1) // (clip * stride))
        self._stops = np.cumsum(self._counts)

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    @property
    def num_too_short(self) -> int:
        """Number of videos that are shorter than a clip."""
        return int(np.count_nonzero(self._counts == 0))

    def __getitem__(self, number: int) -> ExportItem:
        position = int(np.searchsorted(self._stops, number, side="right"))
        video = self.cache[self._keys[position]]
        if self._clip is None:
            return ExportItem(video.key, video, range(video.num_frames))
        place = number - int(self._stops[position] - self._counts[position])
        start, length = place * self._clip * self._stride, self._clip * self._stride
        return ExportItem(f"{video.key}-{place:05}", video, range(start, start + length, self._stride))

    @property
    def digest(self) -> str:
        """Hash of the names of the videos."""
        return hex64("\n".join(self._keys).encode())

    def jpegs(self, item: ExportItem) -> Iterator[bytes]:
        """Yield the frames of an item as JPEG files: those that are cached, or made of frames of another codec."""
        if not self._has_frames:
            return
        codec = item.video.feature("frames").params["codec"]
        for start in range(0, len(item.frames), _BLOCK):
            numbers = item.frames[start : start + _BLOCK]
            if codec in ("jpeg", "yuv420"):
                encoded = self.cache.read_encoded(item.video, numbers)
                yield from encoded if isinstance(encoded, list) else map(_of_planes, encoded)
            else:
                frames = self.cache.read(item.video, indices=numbers)
                yield from (jpeg.encode_rgb(frame, quality=_QUALITY) for frame in frames)

    def arrays(self, item: ExportItem) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and rows of each cached feature but frames, and of columns of series. Tiers may share one."""
        present = (info.feature for info in item.video.sidecar.features if info.absent is None)
        for name in dict.fromkeys(present):
            if name != "frames":
                info = item.video.feature(name)
                for array in info.num_rows if name == SERIES else (name,):
                    yield array, self._feature(item, info, array)

    def _feature(self, item: ExportItem, info: FeatureInfo, array: str) -> np.ndarray:
        if has_times(info.facts):  # mel, waveform, librosa and series have no row for each frame
            return self.cache.read(item.video, array, item.frames.start, item.frames[-1] + 1)
        frames: Sequence[int] = item.frames
        if not CLOCK_FACTS.intersection(info.facts):  # flow has no row for the last frame of a video
            num_rows = item.video.num_rows(info, array)
            frames = [frame for frame in frames if frame < num_rows]
        return self.cache.read(item.video, array, indices=frames)


def _of_planes(picture: np.ndarray) -> bytes:
    return jpeg.encode_planes(*planes.split(picture), quality=_QUALITY)
