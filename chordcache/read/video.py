"""One cached video: the facts of its sidecar, and the times of its frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from chordcache.amounts import counted
from chordcache.arguments import did_you_mean
from chordcache.errors import AbsentFeatureError, DamageError, StorageError, UsageError, printable
from chordcache.features.built_in import read_side, read_sides
from chordcache.features.item_fields import fits
from chordcache.features.read_side import Numbers
from chordcache.media.frame_numbers import frame_numbers
from chordcache.object_stores.local_folder import LocalFolder, local_folder
from chordcache.records import ContentFacts
from chordcache.storage import opener
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.open_files import open_artefact
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.row_clock import FrameGroups, is_of_video
from chordcache.storage.sidecar import Sidecar

_TRIES = 10
"""Number of times that a file of a cache in an object store may be removed before it is open"""


_ROUNDING_SECONDS = 1e-5
"""[seconds] Tolerance of the times of cuts, which are rounded"""


class Video:
    """One cached video: the facts of its sidecar, and the times of its frames."""

    def __init__(self, cache: Path, sidecar: Sidecar) -> None:
        self.cache_path = cache
        """Folder of the cache"""
        self._arrays: dict[str, np.ndarray] = {}
        self.paths: dict[str, Path] = {}
        """Path of each artefact that was opened, by its name"""
        self.read_features: tuple[str, ...] = ()
        """Features that are read anyway. The frame times, which each artefact has, are then taken from theirs"""
        self.origin: object = None
        """Identity of a source that its frames are read from, None if they are cached"""
        self.sidecar = sidecar
        self.claims = sidecar.claims
        """Statements of the sidecar about the artefacts"""
        self.key = sidecar.key
        self.root = sidecar.root
        self.path = sidecar.path
        """Path relative to the root"""
        self.num_frames = sidecar.num_frames
        self.first_row = 0
        """Row of the first frame in the artefacts, which hold the whole file if the video is a segment of it"""
        self.width = sidecar.width
        """Width of the cached frames, [pixels]"""
        self.height = sidecar.height
        """Height of the cached frames, [pixels]"""
        self.start_seconds = sidecar.start_seconds
        self.duration_seconds = sidecar.duration_seconds
        about = sidecar.about
        self.segment = about.segment
        """Part of the file that the video is, None for the whole file"""
        self.label, self.labels = about.label, about.labels
        self.caption, self.captions = about.caption, about.captions
        self.extra = about.extra
        """Further columns of the index, by name"""

    @property
    def bucket(self) -> tuple[int, int, int] | None:
        """(height, width, num_frames) of the bucket that the video was cut to, None in a cache without buckets."""
        return None if self.sidecar.display_crop is None else (self.height, self.width, self.num_frames)

    @property
    def content(self) -> ContentFacts | None:
        """Motion of the picture and loudness of the sound, second by second."""
        return self.sidecar.content

    def __repr__(self) -> str:
        frames = f"{counted(self.num_frames, 'frame')} {self.width}x{self.height}"
        return f"<Video {self.key}: {frames}, {self.duration_seconds:.2f} s>"

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo:
        """Return the record of a feature, which names its artefact.

        Raises ``NotFoundError`` if the feature was not cached, with the reason.
        """
        info = self.sidecar.feature(name, tier)
        where = f" in tier '{tier}'" if tier else ""
        if info is None:
            have = ", ".join(f"{f.feature} ({f.tier})" for f in self.sidecar.features) or "nothing"
            similar = "" if name in read_sides() else did_you_mean(name, read_sides())
            add = similar or f". Add it with 'chordcache build --features {name}'."
            raise AbsentFeatureError(f"'{name}' of video '{self.key}' is not cached{where}; cached: {have}{add}")
        if info.absent is not None:
            raise AbsentFeatureError(f"'{name}' of video '{self.key}' is absent{where}: {info.absent}")
        if info.used and not fits(info, self):
            raise AbsentFeatureError(
                f"'{name}' of video '{self.key}' was made of another value of {', '.join(info.uses)}. Build it again."
            )
        return info

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(num_frames,), dtype=float64, seconds], on the source's clock."""
        return self._kept("pts_seconds")

    @property
    def source_frames(self) -> np.ndarray:
        """Frame numbers in the source [shape=(num_frames,), dtype=int64]."""
        return self._kept("source_frames")

    @property
    def keyframes(self) -> np.ndarray:
        """Frame numbers of the keyframes [shape=(K,), dtype=int64], ascending.

        A keyframe is a frame that the decoder marks as one, in any codec. If ``frames.fps`` left out a keyframe of the
        source, the first cached frame after it takes its place. The array may be empty.
        """
        return self._kept("keyframes")

    @property
    def cuts(self) -> np.ndarray:
        """Frame numbers at which a hard cut begins a new shot [shape=(C,), dtype=int64], ascending.

        A fade is not a cut. If ``frames.fps`` left out the first frame of a shot, the first cached frame after it takes
        its place.
        """
        return self._kept("cuts")

    def _kept(self, name: str) -> np.ndarray:
        # Not a cached_property: before Python 3.12 it has one lock for all videos. A reader in another thread may hold
        # that lock while a DataLoader forks, and the worker then waits for it without end
        if name not in self._arrays:
            self._arrays[name] = self._array(name)
        return self._arrays[name]

    def _array(self, name: str) -> np.ndarray:
        if name == "cuts":
            return self._numbers_of_cuts()
        for info in sorted(self.sidecar.features, key=lambda info: info.feature not in self.read_features):
            if info.file is not None:
                with open_feature(self, info) as artefact:
                    return artefact.array(name)
        raise AbsentFeatureError(f"video '{self.key}' has no cached features, so its frame times are unknown")

    def _numbers_of_cuts(self) -> np.ndarray:
        if self.content is None:
            raise AbsentFeatureError(f"video '{self.key}' has no facts of its content, so its cuts are not known")
        seconds = np.maximum.accumulate(self.pts_seconds - self.pts_seconds[0])
        numbers = np.unique(np.searchsorted(seconds, np.array(self.content.cuts_seconds) - _ROUNDING_SECONDS))
        return numbers[(numbers > 0) & (numbers < self.num_frames)].astype(np.int64)

    def num_rows(self, info: FeatureInfo, array: str) -> int:
        """Return the number of rows of an array that belong to this video.

        Raises ``NotFoundError`` if the video is a segment of a file that is cached whole, and the array does not
        have a row for each frame.
        """
        return read_side(info.feature).num_rows(info)[array]

    def seconds_of(self, start: int, stop: int) -> tuple[float, float]:
        """Return the time of frame ``start`` and of the end of frame ``stop - 1``, half open, on the source's clock."""
        if start >= stop:
            return 0.0, 0.0
        if stop < self.num_frames:
            return float(self.pts_seconds[start]), float(self.pts_seconds[stop])
        return float(self.pts_seconds[start]), float(np.min(self.pts_seconds)) + self.duration_seconds


def row_numbers(video: Video, info: FeatureInfo, array: str, numbers: Numbers | slice) -> Sequence[int]:
    """Return the rows of an array in its artefact for some frames of a video, see ``Cache.rows``."""
    if is_of_video(info.facts):
        return range(info.num_rows[array])
    groups = FrameGroups.of(info.facts)
    if isinstance(numbers, slice):
        span = range(video.num_frames)[numbers]
        if groups is None:
            stop = max(span.start, min(span.stop, video.num_rows(info, array)))
            return range(video.first_row + span.start, video.first_row + stop)
        numbers = span
    if groups is None:
        return checked_numbers(video, info, array, numbers)
    frames = np.asarray(frame_numbers(numbers, video.num_frames, f"video '{video.key}'"), np.int64)
    what = f"'{array}' of video '{video.key}'"
    return list(map(int, groups.rows_of(frames + video.first_row, info.num_rows[array], what)))


def checked_numbers(video: Video, info: FeatureInfo, array: str, numbers: Numbers) -> list[int]:
    """Return the rows of an array that has a row for each frame. Raises as ``frame_numbers``."""
    num_rows = video.num_rows(info, array)
    rows = "" if num_rows == video.num_frames else f"'{array}' of "
    checked = frame_numbers(numbers, num_rows, f"{rows}video '{video.key}'")
    return [number + video.first_row for number in checked] if video.first_row else checked


@contextmanager
def open_feature(video: Video, info: FeatureInfo) -> Iterator[Artefact]:
    """Open the file of a feature. If the file is damaged, the error says how to repair it."""
    folder, file = local_folder(video.cache_path), info.file
    assert file is not None, "an absent feature"
    path = video.paths.get(file.name)
    if path is None:
        path = video.paths[file.name] = video.cache_path / file.name
    try:
        if folder is None:
            yield open_artefact(path, file.num_bytes, video.claims, file.packed)
        else:
            with _opened(folder, video, path, file) as artefact:
                yield artefact
    except MemoryError as error:
        raise out_of_memory(video, info, error) from None
    except DamageError as error:
        if folder is not None:
            raise
        name = f"'{printable(path)}'"
        what = str(error) if name in str(error) or file.packed else f"{name} is damaged: {error}"
        raise DamageError(f"{what}; run 'chordcache verify --repair {printable(video.cache_path)}'") from None


def out_of_memory(video: Video, info: FeatureInfo, error: MemoryError) -> StorageError:
    """Return the error for a read of a feature that needs more memory than there is."""
    what = f"got a read of '{info.feature}' that needs more memory than there is ({error}), expected a smaller one"
    name = info.file.name if info.file else info.feature
    return StorageError(f"'{printable(video.cache_path / name)}': {what}. Read fewer frames at a time.")


@contextmanager
def _opened(folder: LocalFolder, video: Video, path: Path, file: StoredFile) -> Iterator[Artefact]:
    """Open a file of a cache in an object store. Another process may remove it before it is open."""
    is_open = False
    for _ in range(_TRIES):
        folder.ensure(file)
        try:
            artefact = open_artefact(path, file.num_bytes, video.claims)
            is_open = True
            yield artefact
            return
        except DamageError as error:
            if is_open or opener.exists(video.cache_path, file.name):
                raise folder.removed(file, error) from None
    raise UsageError(
        f"limit: got one at which '{file.name}' is removed before it is read, expected more. Raise the limit."
    )
