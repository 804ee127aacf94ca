"""Videos whose frames a source reads, in place of those of a cache, and datasets of such videos."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from chordcache.bucket import is_in_bucket
from chordcache.errors import UsageError, printable
from chordcache.features.frames import FpsFilter
from chordcache.index.index_files import Index, read_index
from chordcache.index.walk import parse_roots
from chordcache.media.cropping import Rectangle
from chordcache.media.segments import end_of, span_of
from chordcache.media.source_file import identify, real_folder
from chordcache.read.cached_videos import VideoSet
from chordcache.read.clips import FeatureReader
from chordcache.read.video import Video
from chordcache.records import ContentFacts, Identity, Segment, VideoRecord
from chordcache.sources.media_file import naming
from chordcache.sources.video_source import VideoSource
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_of
from chordcache.storage.sidecar import Sidecar
from chordcache.train.misses.index_records import IndexRecords

Sample = TypeVar("Sample")


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

    def read_encoded(self, video: Video, indices: Sequence[int] | np.ndarray) -> list[bytes] | np.ndarray:
        """Raise ``UsageError``: a source does not have frames as a cache stores them."""
        raise UsageError(
            f"video '{video.key}': got frames from its source, expected a cached video. Decode them on the CPU."
        )


class UncachedVideo(Video):
    """A video whose frames a source reads. ``place`` is the file, with what else decides the pixels of its frames."""

    def __init__(self, sidecar: Sidecar, frames: SourceFrames, place: object) -> None:
        super().__init__(Path(), sidecar)
        self.origin = place, sidecar.source, sidecar.about.segment
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
    pts_seconds = frames.pts_seconds
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
        about=record.description(),
        content=content,
        display_size=frames.display_size,
    )


class SourceVideos(VideoSet):
    """The videos of an index, of a folder or of some files, whose frames a source reads.

    The videos have the keys that a cache would have for them. Each sample opens its file with a copy of the source.

    Raises
    ------
    NotFoundError
        If the index or a path does not exist.
    UsageError
        If the source is live, if it cannot give one of the features, or if another argument is wrong.
    """

    def __init__(
        self, source: VideoSource, index: Index | str | Path | None, files: object, features: Sequence[str]
    ) -> None:
        kind = type(source).__name__
        if source.is_live:
            raise UsageError(
                f"source: got a {kind}, expected a source of files. A live source does not have a length, and cannot "
                f"be read again. Loop over {kind}(...).open(...).get_frame(n), or record it and read the file."
            )
        for name in features:
            if name != "frames":
                raise UsageError(
                    f"features: got '{name}' with a {kind}, expected only 'frames', which every source gives. For "
                    "other features, take MP4Source or MappedMP4Source, or build a cache."
                )
        self._source = source
        self._records: Sequence[VideoRecord] | IndexRecords
        self._follow_symlinks = False
        if index is None:
            self._roots, self._records = roots_and_records(files)
            self.labels, self.columns = [], {}
            self._label_ids = np.full(len(self._records), -1, np.int32)
            self._annotation_names = AnnotationNames()
        else:
            index = index if isinstance(index, Index) else read_index(index)
            self._roots, self._follow_symlinks = dict(index.roots), index.follow_symlinks
            self._records = IndexRecords(index)
            self.labels, self.columns = self._records.labels, index.columns
            self._label_ids, self._annotation_names = self._records.label_ids, self._records.annotation_names
        check_on_disk(self._roots)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{type(self._source).__name__} of {', '.join(map(printable, self._roots.values()))}>"

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return the labels of the index, and the position there of every video's. See ``VideoSet``."""
        return self.labels, self._label_ids

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos. See ``VideoSet``."""
        return self._annotation_names

    def keep(self, mask: np.ndarray) -> None:
        """Leave out no video, since none lacks the feature frames."""
        assert mask.all()

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the source shows. See ``VideoSet``."""
        return self._source.stereo

    def read(self, position: int, sample: Callable[[FeatureReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for the frames of a file, and its video. See ``VideoSet``."""
        record = self._records[position]
        folder = self._roots[record.root]
        path = os.path.join(folder, record.path)
        source = copy.deepcopy(self._source)  # an open source belongs to one thread
        source._inside = None if self._follow_symlinks else real_folder(folder)
        with naming(path):
            identity = identify(path, source._inside)
        with source.open(path):
            frames = SourceFrames(source, source.max_fps, record.segment)
            info = FeatureInfo("frames", "source", "", {})
            is_whole = record.identity == identity and record.segment is None
            content = record.content if is_whole else None
            sidecar = sidecar_of(record, identity, frames, info, content)
            return sample(frames, UncachedVideo(sidecar, frames, (self, path)))


def check_on_disk(roots: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if a root is in a bucket: what reads it does not survive the fork of a DataLoader."""
    for label, folder in roots.items():
        if is_in_bucket(folder):
            raise UsageError(
                f"index: got root '{printable(label)}' in the bucket '{printable(folder)}', expected a folder "
                "of this machine. Build a cache, and read it with on_miss='error' or 'skip'."
            )


def roots_and_records(files: object) -> tuple[Mapping[str, str], Sequence[VideoRecord]]:
    """Return the folder of each root, and a record of each video below folders and of each file.

    Raises ``UsageError`` if there is none, and ``NotFoundError``.
    """
    if isinstance(files, (str, Path)):
        files = [files]
    if not isinstance(files, Iterable) or callable(files):
        raise UsageError(f"files: got {files!r}, expected a folder, or a sequence of paths")
    corpora = parse_roots([os.fspath(path) for path in files])
    records = [VideoRecord(corpus.label, file.path) for corpus in corpora for file in corpus.files() if file.is_video]
    if not records:
        raise UsageError("files: got no video, expected a folder with videos, or a sequence of paths")
    return {corpus.label: corpus.folder for corpus in corpora}, records
