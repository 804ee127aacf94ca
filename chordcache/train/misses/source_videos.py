"""Videos that are read from their sources: their frames, their sound, and the facts that samplers ask for."""

from __future__ import annotations

import copy
import json
import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from chordcache.config.config import Config
from chordcache.config.picture import FramesConfig, PictureConfig
from chordcache.errors import UsageError, printable
from chordcache.features.base import VideoInfo
from chordcache.features.built_in import read_side
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.feed import decode_item
from chordcache.features.frames import FpsFilter
from chordcache.features.read_side import Numbers, RowReader, in_memory
from chordcache.features.registry import FeatureSpec, resolve
from chordcache.index.index_files import Index, temporary_index
from chordcache.index.lists.tables import open_for_reading
from chordcache.index.walk import parse_roots
from chordcache.media import jpeg
from chordcache.media.audio import parts_of_sound
from chordcache.media.containers import why_no_sound
from chordcache.media.cropping import Rectangle
from chordcache.media.demux import open_media
from chordcache.media.planes import to_rgb
from chordcache.media.scaling import PictureScaler
from chordcache.media.segments import end_of, span_of
from chordcache.media.source_file import identify, open_source, real_folder
from chordcache.object_stores.client import is_in_store
from chordcache.read.cached_videos import VideoSet
from chordcache.read.selection import warn_of_left_out
from chordcache.read.video import Video
from chordcache.records import ContentFacts, Identity, VideoRecord
from chordcache.sources.mapped_mp4 import MappedMP4Source
from chordcache.sources.media_file import MP4Source, naming
from chordcache.sources.video_source import VideoSource
from chordcache.storage.annotation_names import AnnotationCounter, AnnotationNames
from chordcache.storage.artefacts.artefact import Artefact, checked_out
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.layout import key_of
from chordcache.storage.sidecar import Sidecar
from chordcache.temporary import keep_with

Sample = TypeVar("Sample")

GIVEN = ("frames", "librosa", "mel", "waveform")
"""Features that a source gives. The others take a build"""

_UNREADABLE, _NOT_CACHED = "that the scan could not read", "not cached"
"""Reasons for which a record is left out, beside those of the quarantine"""


class StoredSource(MP4Source):
    """Source of frames that went through the codec of a cache."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.picture)
        frames = config.frames or FramesConfig()
        self._codec, self._quality = frames.codec, frames.quality
        self._show = None if frames.codec == "raw" else self._stored

    def _stored(self, scaler: PictureScaler, picture: Any) -> np.ndarray:
        planes = scaler.planes(picture)
        shown = np.empty((*planes[0].shape, 3), np.uint8)
        if self._codec == "jpeg":
            jpeg.decode_into(jpeg.encode_planes(*planes, quality=self._quality), shown)
        else:
            to_rgb([plane[None] for plane in planes], 0, 0, shown[None])
        return shown


_OF_BUILDS = (MP4Source, MappedMP4Source, StoredSource)
"""Sources that show the frames which a build decodes. A class that is derived from one may show others"""


class UncachedVideo(Video):
    """A video whose features a source gives, which is open at ``path``, and their reader in place of a ``Cache``.

    ``of_sound`` are the features of sound. They are made of the whole sound at once. ``owner`` decides the pixels too.
    """

    def __init__(
        self,
        source: VideoSource,
        path: str,
        record: VideoRecord,
        identity: Identity,
        of_sound: Iterable[FeatureSpec],
        owner: object,
    ) -> None:
        self._source, self._path, self._record = source, path, record
        self._rows: dict[str, np.ndarray] = {}
        self._measured: DecodeResult | None = None
        times, segment = source.pts_seconds, record.segment
        index = getattr(source, "frame_index", None)  # not every source knows the rate that the headers state
        frame_seconds = float(index.frame_seconds) if index else 1 / source.fps
        span = range(len(times)) if segment is None else span_of(segment, times, frame_seconds)
        end_seconds = end_of(segment, span, times, frame_seconds)
        keeps = FpsFilter(source.max_fps).keeps
        numbers = np.array([number for number in span if keeps(float(times[number]))], np.int64)
        kept = times[numbers]
        self._span_seconds = None if segment is None else (float(times[span.start]), end_seconds)
        last_seconds = frame_seconds if segment is None else end_seconds - float(kept[-1])
        height, width, _ = source.get_frame(int(numbers[0])).shape  # the first frame fixes the size of all frames
        shape, size = (len(numbers), height, width, 3), getattr(source, "display_size", None)
        sidecar = Sidecar(
            key=key_of(record),
            root=record.root,
            path=record.path,
            source=identity,
            num_frames=len(numbers),
            width=width,
            height=height,
            start_seconds=float(kept[0]),
            duration_seconds=float(np.ptp(kept)) + max(last_seconds, 1 / source.max_fps if source.max_fps else 0.0),
            timestamp_source="pts",
            num_frames_skipped=index.num_frames_skipped if index else 0,
            features=(FeatureInfo("frames", "source", "", {}, shape=shape, dtype="uint8"), *map(self._heard, of_sound)),
            content=record.content if record.identity == identity and segment is None else None,
            about=record.description(),
            display_size=size,
        )
        super().__init__(Path(), sidecar)
        self._arrays |= {"pts_seconds": kept, "source_frames": numbers}
        self.origin = owner, path, sidecar.source, record.segment

    def _heard(self, spec: FeatureSpec) -> FeatureInfo:
        blocks: dict[str, list[Any]] = defaultdict(list)
        spec.set_up()
        extractor = spec.make()
        with open_source(self._path, self._source.inside) as opened, open_media(opened.place) as media:
            why_silent = "" if media.audio else why_no_sound(media.container)
            absent = extractor.begin(VideoInfo("", 0, 0, not why_silent, {}, why_silent))
            sounds = parts_of_sound(media, *self._span_seconds) if self._span_seconds else media.sounds()
            all_rows = [] if absent else [*map(extractor.add_sound, sounds), extractor.finish()]
        for name, block in (item for rows in all_rows for item in rows.items()):
            blocks[name].append(block)
        info = FeatureInfo(spec.name, "source", spec.fingerprint, spec.params)
        if absent := absent or extractor.absent:
            return info.replace(absent=absent)
        arrays = {name: np.concatenate(parts) for name, parts in blocks.items()}
        self._rows |= arrays
        own, facts = arrays[spec.name], json.loads(json.dumps(extractor.facts))
        num_rows = {name: len(rows) for name, rows in arrays.items()}
        return info.replace(shape=own.shape, dtype=str(own.dtype), num_rows=num_rows, facts=facts)

    @property
    def content(self) -> ContentFacts | None:
        """Motion of the picture and loudness of the sound, for which the video is decoded if the index lacks them."""
        known = self.sidecar.content
        return self._decoded().content if known is None and type(self._source) in _OF_BUILDS else known

    def _array(self, name: str) -> np.ndarray:
        if type(self._source) not in _OF_BUILDS:
            raise UsageError(
                f"clip_sampler: got one that needs {name}, expected one that needs frame times only, "
                "because a source of your own reads the video. Take MP4Source, or build a cache."
            )
        return self._decoded().keyframes

    def _decoded(self) -> DecodeResult:
        if self._measured is None:
            decode = DecodePass({}, {}, PictureConfig(fps=self._source.max_fps), with_content=True)
            with naming(self._path), open_source(self._path, self._source.inside) as opened:
                self._measured = decode_item(opened.place, decode, self._record.segment)
        return self._measured

    def rows(self, video: Video, feature: str, numbers: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Read frames, or the sound of a slice of them. See ``Cache.rows``."""
        if feature == "frames":
            return in_memory("frames", self._source.get_frames(self.source_frames[numbers]), out)
        info, span = self.feature(feature.partition(".")[0]), range(self.num_frames)[numbers]
        seconds, rows = self.seconds_of(span.start, span.stop), cast(Artefact, _Rows(self._rows))
        return read_side(info.feature).rows_in(rows, info, feature, seconds, out)

    def iter_frames(self, video: Video, indices: Numbers, *, part: Rectangle | None = None) -> Iterator[np.ndarray]:
        """Decode all frames at once, and yield them. See ``Cache.iter_frames``."""
        frames = self.rows(video, "frames", indices)
        yield part.of(frames) if part else frames

    def read_encoded(self, video: Video, indices: Numbers) -> list[bytes] | np.ndarray:
        """Raise ``UsageError``: a source does not have frames as a cache stores them."""
        what = f"video '{self.key}': got frames from its source, expected a cached video"
        raise UsageError(f"{what}. Decode them on the CPU.")


class _Rows(dict[str, np.ndarray]):
    """Arrays in memory, in place of an ``Artefact``."""

    def rows(self, name: str, numbers: range) -> np.ndarray:
        """Return consecutive rows."""
        return self[name][numbers.start : numbers.stop]

    memory_for = staticmethod(checked_out)


class SourceVideos(VideoSet):
    """The videos of an index, in its order, whose features a source gives. They have the keys of a cache.

    Only the offset of each record in the file of the index is kept. Each sample opens its file with a copy of the
    source. ``config`` has the settings of the features of sound. ``cause_of`` returns the cause for which a record is
    in the quarantine of ``cache``, or "" to leave it out, or None to keep it. By default, it leaves out what the scan
    could not read.

    Raises ``UsageError`` if the source is live, if it cannot give one of the features, if a root is in a store, or if
    no video is left. A source of None is never read.
    """

    def __init__(
        self,
        source: VideoSource | None,
        index: Index,
        features: Iterable[str],
        config: Config,
        cause_of: Callable[[VideoRecord], str | None] = lambda record: None if record.error is None else "",
        cache: Path | None = None,
        *,
        follow_symlinks: bool = False,
    ) -> None:
        self._source, self._index, self.columns = source, index, index.columns
        self._follow_symlinks = follow_symlinks or index.follow_symlinks
        if source is not None:
            _check_source(source, index, features)
        self._of_sound = [resolve(name, config) for name in features if name != "frames"] if source else []
        offsets, label_ids, ids = array("q"), array("i"), dict[str, int]()
        causes, others, examples = Counter[str](), Counter[str](), dict[str, str]()
        annotations = AnnotationCounter()
        with open_for_reading(index.path) as file:
            self._state = _state(file.fileno())
            for offset, record in index.located(file):
                cause = cause_of(record)
                if cause is None:
                    offsets.append(offset)
                    label_ids.append(-1 if record.label is None else ids.setdefault(record.label, len(ids)))
                    annotations.add(record)
                elif cause:
                    causes[cause] += 1
                else:
                    reason = _NOT_CACHED if record.error is None else _UNREADABLE
                    others[reason] += 1
                    examples.setdefault(reason, f"{reason}, such as '{printable(record.path)}'")
        self._offsets, self._names, self._num_named = np.asarray(offsets), annotations.names(), len(offsets)
        self.labels = sorted(ids)
        places = {label: place for place, label in enumerate(self.labels)}
        self._label_ids = np.array([*(places[label] for label in ids), -1], np.int32)[np.asarray(label_ids)]
        reasons = {examples[reason]: others[reason] for reason in (_UNREADABLE, _NOT_CACHED) if reason in others}
        num_all = len(offsets) + causes.total() + others.total()
        warn_of_left_out(f"index '{printable(index.path)}'", num_all, causes, reasons, cache)
        if not offsets:
            what = "a video that can be read" if causes or others[_NOT_CACHED] else "a readable video"
            raise UsageError(f"index: got '{printable(index.path)}' without {what}, expected at least one")

    def __repr__(self) -> str:
        return f"<{type(self._source).__name__} of {', '.join(map(printable, self._index.roots.values()))}>"

    def __len__(self) -> int:
        return len(self._offsets)

    def numbered_labels(self) -> tuple[list[str], np.ndarray]:
        """Return the labels of the index, and the position there of every video's. See ``VideoSet``."""
        return self.labels, self._label_ids

    def annotation_names(self) -> AnnotationNames:
        """Return the names in the annotations of all videos. See ``VideoSet``."""
        return self._names

    @property
    def num_named(self) -> int | None:
        """Number of videos that ``annotation_names`` counts. See ``VideoSet``."""
        return self._num_named if self._num_named == len(self) else None

    @property
    def stereo(self) -> str:
        """Eye of stereo pictures that the source shows. See ``VideoSet``."""
        return self._source.stereo if self._source else "as_is"

    def keep(self, mask: np.ndarray) -> None:
        """Leave out the videos where the mask is False. See ``VideoSet``."""
        self._offsets, self._label_ids = self._offsets[mask], self._label_ids[mask]

    def record(self, position: int) -> VideoRecord:
        """Return the record of a video. Raise ``UsageError`` if the index has changed."""
        with open_for_reading(self._index.path) as file:
            if _state(file.fileno()) == self._state:
                return self._index.at(file, int(self._offsets[position]))
        path = printable(self._index.path)
        raise UsageError(f"index: '{path}' changed since the dataset was made. Recreate the dataset.")

    def read(self, position: int, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for a file, and its video. See ``VideoSet``."""
        return self.read_source(self.record(position), sample)

    def read_source(self, record: VideoRecord, sample: Callable[[RowReader, Video], Sample]) -> Sample:
        """Return the result of ``sample`` for the file of a record, and its video."""
        assert self._source is not None
        folder = self._index.roots[record.root]
        path = os.path.join(folder, record.path)
        source = copy.deepcopy(self._source)  # an open source belongs to one thread
        source.inside = None if self._follow_symlinks else real_folder(folder)
        with naming(path):
            identity = identify(path, source.inside)
        with source.open(path):
            with naming(path):
                video = UncachedVideo(source, path, record, identity, self._of_sound, self)
            return sample(video, video)


def _check_source(source: VideoSource, index: Index, features: Iterable[str]) -> None:
    kind, given = type(source).__name__, GIVEN if type(source) in _OF_BUILDS else GIVEN[:1]
    if source.is_live:
        raise UsageError(
            f"source: got a {kind}, expected a source of files. A live source does not have a length, and cannot "
            f"be read again. Loop over {kind}(...).open(...).get_frame(n), or record it and read the file."
        )
    for name in features:
        if name not in given:
            raise UsageError(
                f"features: got '{name}' with a {kind}, expected only {', '.join(given)}. For sound, take MP4Source "
                "or MappedMP4Source. For other features, build a cache."
            )
    check_on_disk(index)


def check_on_disk(index: Index) -> None:
    """Raise ``UsageError`` if a root is in an object store: what reads it does not survive the fork of a DataLoader."""
    for label, folder in index.roots.items():
        if is_in_store(folder):
            raise UsageError(
                f"index: got root '{printable(label)}' in the object store '{printable(folder)}', expected a folder of "
                "this machine. Build a cache, and read it with on_miss='error' or 'skip'."
            )


def _state(fd: int) -> tuple[int, int, int]:
    status = os.fstat(fd)
    return status.st_ino, status.st_size, status.st_mtime_ns


def index_of(files: object) -> Index:
    """Write an index of each video below folders and of each file, which is removed with the result.

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
    with ExitStack() as stack:
        roots = {corpus.label: corpus.folder for corpus in corpora}
        index = stack.enter_context(temporary_index(records, roots=roots, level=None))
        keep_with(index, stack)
    return index
