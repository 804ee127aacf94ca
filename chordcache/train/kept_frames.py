"""Decoded frames that a loader keeps in memory, for videos that are read again and again."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import chain
from typing import Any

import numpy as np

from chordcache.amounts import counted, human_bytes
from chordcache.features.read_side import Numbers, RowReader
from chordcache.media.cropping import Rectangle
from chordcache.read.video import Video
from chordcache.storage.artefacts.artefact import checked_out


class KeptFrames:
    """Frames before any crop, of at most ``max_bytes`` together. Thread-safe.

    A frame that was kept stays. An epoch over more frames than fit therefore finds those that do.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._frames: dict[tuple[object, int], np.ndarray] = {}
        """Frames [shape=(H, W, 3), dtype=uint8] by all that decides their pixels, and by row"""
        self.num_bytes = 0
        """[bytes] Size of all frames in memory"""
        self.num_hits = self.num_misses = 0
        """Number of frames so far that were in memory, and that were decoded"""

    def __repr__(self) -> str:
        sizes = f"{human_bytes(self.num_bytes)} of {human_bytes(self._max_bytes)}"
        hits = f"{counted(self.num_hits, 'hit')}, {self.num_misses:,} missed"
        return f"<KeptFrames of {counted(len(self._frames), 'frame')}: {sizes}, {hits}>"

    def read(self, reader: RowReader, video: Video, numbers: Numbers) -> list[np.ndarray] | None:
        """Return frames [shape=(H, W, 3), dtype=uint8], read-only. None if none are in memory, and none fit."""
        info = video.feature("frames")
        pixels = video.origin, info.file, info.fingerprint, info.shape[1:]
        places = [(pixels, int(number) + video.first_row) for number in numbers]
        with self._lock:
            frames = {place: self._frames[place] for place in places if place in self._frames}
            missing = {place: int(number) for place, number in zip(places, numbers, strict=True) if place not in frames}
            self.num_hits += len(frames)
            self.num_misses += len(missing)
            if not frames and self.num_bytes + math.prod(info.shape[1:]) > self._max_bytes:
                return None
        blocks = reader.iter_frames(video, np.array([*missing.values()], np.int64)) if missing else ()
        for place, frame in zip(missing, chain.from_iterable(blocks), strict=True):
            frames[place] = copy = frame.copy()  # the memory of a block is used again
            copy.flags.writeable = False
            with self._lock:
                if place not in self._frames and self.num_bytes + copy.nbytes <= self._max_bytes:
                    self._frames[place] = copy
                    self.num_bytes += copy.nbytes
        return [frames[place] for place in places]


frames_of_thread: ContextVar[KeptFrames | None] = ContextVar("frames that this thread keeps", default=None)


class KeepingReader:
    """Reader that takes frames from memory, and keeps those that it decodes. The pixels are those of its reader."""

    def __init__(self, reader: RowReader, frames: KeptFrames) -> None:
        self._reader, self._frames = reader, frames
        self.read_encoded = reader.read_encoded

    def rows(self, video: Video, feature: str, numbers: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Read the rows of a feature, as ``Cache.rows`` does."""
        frames = self._frames.read(self._reader, video, numbers) if feature == "frames" else None
        if not frames:
            return self._reader.rows(video, feature, numbers, out)
        shape = (len(frames), *frames[0].shape)
        return np.stack(frames, out=checked_out(feature, shape, np.dtype(np.uint8), out))

    def iter_frames(self, video: Video, indices: Numbers, *, part: Rectangle | None = None) -> Iterator[np.ndarray]:
        """Read frames a few at a time, as ``Cache.iter_frames`` does."""
        frames = self._frames.read(self._reader, video, indices)
        if frames is None:
            return self._reader.iter_frames(video, indices, part=part)
        return (part.of(frame[None]) if part else frame[None] for frame in frames)
