"""The frames of an open source, in place of those of a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from chordcache.errors import UsageError
from chordcache.features.frames import FpsFilter
from chordcache.media.cropping import Rectangle
from chordcache.media.segments import end_of, span_of
from chordcache.read.video import Video
from chordcache.records import ContentFacts, FeatureInfo, Identity, Segment, VideoRecord
from chordcache.sources.video_source import VideoSource
from chordcache.storage.layout import key_of
from chordcache.storage.sidecar import Sidecar


class SourceFrames:
    """The frames of a source by the numbers that they will have in the cache."""

    def __init__(self, source: VideoSource, fps: float | None, segment: Segment | None) -> None:
        self._source = source
        times = source.pts_seconds
        index = getattr(source, "frame_index", None)  # not every source knows the rate that the headers state
        frame_seconds = float(index.frame_seconds) if index else 1 / source.fps
        span = range(len(times)) if segment is None else span_of(segment, times, frame_seconds)
        keeps = FpsFilter(fps).keeps
        kept = [number for number in span if keeps(float(times[number]))]
        self.source_frames = np.array(kept, np.int64)
        self.pts_seconds = times[self.source_frames]
        self.num_frames = len(kept)
        self.num_frames_skipped: int = index.num_frames_skipped if index else 0
        if segment is not None:
            frame_seconds = end_of(segment, span, times, frame_seconds) - float(self.pts_seconds[-1])
        self.frame_seconds = max(frame_seconds, 1 / fps if fps else 0.0)

    def read_first(self) -> np.ndarray:
        """Decode the first frame [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB], which fixes the size of all frames."""
        return self._source.get_frame(int(self.source_frames[0]))

    @property
    def display_size(self) -> tuple[int, int] | None:
        """(width, height) of the displayed source, [pixels]. Known after the first frame, of sources that state it."""
        return getattr(self._source, "display_size", None)

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
        """Decode frames [shape=(T, H, W, 3), dtype=uint8, 0 to 255, RGB]. See ``Cache.read``."""
        chosen = slice(start, stop) if indices is None else np.asarray(indices)
        frames = self._source.get_frames(self.source_frames[chosen])
        if out is None:
            return frames
        out[...] = frames
        return out

    def iter_frames(
        self, video: Video, indices: Sequence[int] | np.ndarray, *, part: Rectangle | None = None
    ) -> Iterator[np.ndarray]:
        """Decode all frames at once, and yield them. See ``Cache.iter_frames``."""
        frames = self.read(video, indices=indices)
        yield part.of(frames) if part else frames

    def iter_jpegs(self, video: Video, indices: Sequence[int] | np.ndarray) -> Iterator[bytes]:
        """Raise ``UsageError``: a source does not have JPEGs."""
        raise UsageError(
            f"video '{video.key}': got frames from its source, expected a cache of JPEGs. Decode them on the CPU."
        )


class UncachedVideo(Video):
    """A video whose frames a source reads."""

    def __init__(self, sidecar: Sidecar, frames: SourceFrames) -> None:
        super().__init__(Path(), sidecar)
        self._timeline = {"pts_seconds": frames.pts_seconds, "source_frames": frames.source_frames}

    def _array(self, name: str) -> np.ndarray:
        if name not in self._timeline:
            raise UsageError(
                f"clip_sampler: got one that needs {name}, expected one that needs frame times only, because the video "
                "is read from its file. Take chordcache.videos.indexed with on_miss='source', or build a cache."
            )
        return self._timeline[name]


def sidecar_of(
    record: VideoRecord, identity: Identity, frames: SourceFrames, info: FeatureInfo, content: ContentFacts | None
) -> Sidecar:
    """Make the sidecar that a cache will have, as far as the source and the first picture show.

    ``identity`` is that of the file, and ``info`` describes the frames, except for their shape.
    """
    height, width, _ = shape = frames.read_first().shape
    pts_seconds, size = frames.pts_seconds, frames.display_size
    return Sidecar(
        key=key_of(record),
        root=record.root,
        path=record.path,
        source=identity,
        num_frames=len(pts_seconds),
        width=width,
        height=height,
        start_seconds=float(pts_seconds[0]),
        duration_seconds=float(np.max(pts_seconds) - np.min(pts_seconds)) + frames.frame_seconds,
        timestamp_source="pts",
        num_frames_skipped=frames.num_frames_skipped,
        features=(info.replace(shape=(frames.num_frames, *shape), dtype="uint8"),),
        content=content,
        display_width=size[0] if size else None,
        display_height=size[1] if size else None,
    ).described(record)
