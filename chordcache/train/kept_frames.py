"""Decoded frames that a loader keeps in memory, for videos that are read again and again."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import TypeAlias

import numpy as np

from chordcache.amounts import counted, human_bytes
from chordcache.media.cropping import Rectangle
from chordcache.read.clips import FeatureReader
from chordcache.read.video import Video
from chordcache.storage.artefacts.artefact import checked_out

Pixels: TypeAlias = object
"""Identity of the frames of a video: the digest of their file, or the source and the request"""


class KeptFrames:
    """Frames of the videos that were read most often, before any crop. Thread-safe.

    A video that was read more than twice as often as one in memory takes its place. Others stay in memory, so that an
    epoch over more videos than fit finds those that do. The size of all frames never exceeds ``max_bytes``.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._frames: dict[Pixels, dict[int, np.ndarray]] = {}
        """Frames by number [shape=(H, W, 3), dtype=uint8] of each video in memory"""
        self._num_reads: dict[Pixels, int] = {}
        """Number of reads of each video, also of those that are not in memory"""
        self._least_reads = 0
        """No video in memory was read less often. It spares a look at all of them for most frames that do not fit"""
        self.num_bytes = 0
        """[bytes] Size of all frames in memory"""
        self.num_hits = self.num_misses = 0
        """Number of frames so far that were in memory, and that were decoded"""

    def __repr__(self) -> str:
        sizes = f"{human_bytes(self.num_bytes)} of {human_bytes(self._max_bytes)}"
        counts = f"{counted(self.num_hits, 'hit')}, {self.num_misses:,} missed"
        return f"<KeptFrames of {counted(len(self._frames), 'video')}: {sizes}, {counts}>"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let ``kept`` of this thread return readers that keep frames here."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    def find(self, pixels: Pixels, numbers: Collection[int], frame_bytes: int) -> dict[int, np.ndarray] | None:
        """Return those of some frames that are in memory. None if none are, and none fit.

        This counts as a read of the video. ``frame_bytes`` is the size of a frame [bytes].
        """
        with self._lock:
            self._num_reads[pixels] = self._num_reads.get(pixels, 0) + 1
            of_video = self._frames.get(pixels, {})
            frames = {number: of_video[number] for number in numbers if number in of_video}
            self.num_hits += len(frames)
            self.num_misses += len(numbers) - len(frames)
            return frames if frames or self._make_room(pixels, frame_bytes) else None

    def add(self, pixels: Pixels, number: int, frame: np.ndarray) -> None:
        """Keep a frame, read-only, if there is room, or if videos that were read far less often can go."""
        with self._lock:
            if number not in self._frames.get(pixels, ()) and self._make_room(pixels, frame.nbytes):
                frame.flags.writeable = False
                self._frames.setdefault(pixels, {})[number] = frame
                self._least_reads = min(self._least_reads, self._num_reads[pixels])
                self.num_bytes += frame.nbytes

    def _make_room(self, pixels: Pixels, num_bytes: int) -> bool:
        """Drop videos that were read far less often than this one, until a frame fits. Return whether it does."""
        while self.num_bytes + num_bytes > self._max_bytes:
            if not self._frames or 2 * self._least_reads >= self._num_reads[pixels]:
                return False
            least = min(self._frames, key=self._num_reads.__getitem__)
            self._least_reads = self._num_reads[least]
            if 2 * self._least_reads >= self._num_reads[pixels]:
                return False
            self.num_bytes -= sum(frame.nbytes for frame in self._frames.pop(least).values())
        return True


_in_use: ContextVar[KeptFrames | None] = ContextVar("frames that are kept", default=None)


def kept(reader: FeatureReader) -> FeatureReader:
    """Return a reader that keeps frames, if the loader of this thread does so, or else the reader itself."""
    frames = _in_use.get()
    return reader if frames is None else _KeepingReader(reader, frames)


class _KeepingReader:
    """Reader that takes frames from memory, and keeps those that it decodes. The pixels are those of its reader."""

    def __init__(self, reader: FeatureReader, frames: KeptFrames) -> None:
        self._reader, self._frames = reader, frames
        self.read_encoded = reader.read_encoded

    def read(
        self,
        video: Video,
        feature: str = "frames",
        start: int | None = None,
        stop: int | None = None,
        *,
        indices: Sequence[int] | np.ndarray | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Read a feature of one video, as ``Cache.read`` does."""
        frames = None if feature != "frames" or indices is None else self._all(video, indices)
        if frames is None:
            return self._reader.read(video, feature, start, stop, indices=indices, out=out)
        shape = (len(frames), *video.feature("frames").shape[1:])
        pictures = checked_out(feature, shape, np.dtype(np.uint8), out)
        for place, frame in enumerate(frames):
            pictures[place] = frame
        return pictures

    def iter_frames(
        self, video: Video, indices: Sequence[int] | np.ndarray, *, part: Rectangle | None = None
    ) -> Iterator[np.ndarray]:
        """Read frames a few at a time, as ``Cache.iter_frames`` does."""
        frames = self._all(video, indices)
        if frames is None:
            return self._reader.iter_frames(video, np.asarray(indices), part=part)
        return (part.of(frame[None]) if part else frame[None] for frame in frames)

    def _all(self, video: Video, indices: Sequence[int] | np.ndarray) -> list[np.ndarray] | None:
        """Return frames [shape=(H, W, 3), dtype=uint8], or None if those of this video do not fit."""
        info = video.feature("frames")
        pixels = info.digest or (video.key, video.sidecar.source, info.fingerprint)
        rows = {int(number): int(number) + video.first_row for number in indices}
        frames = self._frames.find(pixels, rows.values(), math.prod(info.shape[1:]))
        if frames is None:
            return None
        missing = [number for number, row in rows.items() if row not in frames]
        blocks = self._reader.iter_frames(video, np.array(missing, np.int64)) if missing else ()
        for number, frame in zip(missing, chain.from_iterable(blocks), strict=True):
            frames[rows[number]] = copy = frame.copy()  # the memory of a block is used again
            self._frames.add(pixels, rows[number], copy)
        return [frames[rows[int(number)]] for number in indices]
