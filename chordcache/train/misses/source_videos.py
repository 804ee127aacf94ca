"""The videos of a dataset that are read from files, without a cache."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from chordcache.errors import UsageError, printable
from chordcache.index.index_files import Index, read_index
from chordcache.index.walk import parse_roots
from chordcache.media.source_file import identify, real_folder
from chordcache.read.cached_videos import VideoSet
from chordcache.read.clips import FeatureReader
from chordcache.read.video import Video
from chordcache.records import FeatureInfo, VideoRecord
from chordcache.sources.media_file import naming
from chordcache.sources.video_source import VideoSource
from chordcache.storage.annotation_names import AnnotationNames
from chordcache.train.misses.index_records import IndexRecords
from chordcache.train.misses.source_frames import SourceFrames, UncachedVideo, sidecar_of

Sample = TypeVar("Sample")


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
                    "other features, take chordcache.videos.indexed with on_miss='source', or build a cache."
                )
        self._source = source
        self._records: Sequence[VideoRecord] | IndexRecords
        self._follow_symlinks = False
        if index is None:
            self._roots, self._records = _roots_and_records(files)
            self.labels, self.columns = [], {}
            self._label_ids = np.full(len(self._records), -1, np.int32)
            self._annotation_names = AnnotationNames()
        else:
            index = index if isinstance(index, Index) else read_index(index)
            self._roots, self._follow_symlinks = dict(index.roots), index.follow_symlinks
            self._records = IndexRecords(index)
            self.labels, self.columns = self._records.labels, index.columns
            self._label_ids, self._annotation_names = self._records.label_ids, self._records.annotation_names

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
            return sample(frames, UncachedVideo(sidecar_of(record, identity, frames, info, content), frames))


def _roots_and_records(files: object) -> tuple[Mapping[str, str], Sequence[VideoRecord]]:
    """Return the folder of each root, and a record of each video below folders and of each file."""
    if isinstance(files, (str, Path)):
        files = [files]
    if not isinstance(files, Iterable) or callable(files):
        raise UsageError(f"files: got {files!r}, expected a folder, or a sequence of paths")
    corpora = parse_roots([os.fspath(path) for path in files])
    records = [VideoRecord(corpus.label, file.path) for corpus in corpora for file in corpus.files() if file.is_video]
    if not records:
        raise UsageError("files: got no video, expected a folder with videos, or a sequence of paths")
    return {corpus.label: corpus.folder for corpus in corpora}, records
