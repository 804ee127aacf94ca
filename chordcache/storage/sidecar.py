"""The sidecar of a video: the JSON file whose replacement commits the video's artefacts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from chordcache.errors import DamageError, NotFoundError, printable
from chordcache.json_records import MAX_FRAMES, Count, Length, Limit, Moment, Record, Side
from chordcache.records import ContentFacts, Description, Identity, VideoRecord
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.feature_info import FeatureInfo, Packed, StoredFile
from chordcache.storage.feature_rules import Claims, feature_problem
from chordcache.storage.layout import is_key, key_of_artefact, path_problem, sidecar_file
from chordcache.storage.opener import read_file
from chordcache.storage.sealed_json import seal_versioned, unseal_as


class Sidecar(Record, frozen=True):
    """The commit record of one video."""

    key: str
    root: str
    path: str
    source: Identity
    num_frames: Annotated[int, Limit(ge=1, le=MAX_FRAMES)]
    width: Side
    """[pixels] of the cached frames"""
    height: Side
    """[pixels] of the cached frames"""
    start_seconds: Moment
    """[seconds] presentation time of the first cached frame"""
    duration_seconds: Length
    """[seconds] to the end of the last cached frame"""
    timestamp_source: str
    features: tuple[FeatureInfo, ...]
    about: Description = Description()
    """Labels, captions and columns of the index, and the part of the source"""
    num_frames_skipped: int = 0
    """Frames of the source before the first frame that can be decoded"""
    notes: tuple[str, ...] = ()
    """Changes to the picture that the numbers of the sidecar do not show"""
    content: ContentFacts | None = None
    """Motion of the picture and loudness of the sound"""
    picture: str = ""
    """16 hex digits over the settings of the pictures, see ``PictureConfig.fingerprint``"""
    display_size: tuple[Count, Count] | None = None
    """(width, height) [pixels] of the source as a player shows it, or of one eye of it"""
    display_crop: tuple[float, float, float, float] | None = None
    """(left, top, width, height) [pixels of display_size] of the part that the cached frames show, if they were cut to
    a bucket"""

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo | None:
        """Return the entry of a feature, in ``tier`` or in the first tier that holds the feature."""
        return next((f for f in self.features if f.feature == name and tier in (None, f.tier)), None)

    @property
    def files(self) -> list[StoredFile]:
        """Its files, each once."""
        return files_of(self.features)

    @property
    def record(self) -> VideoRecord:
        """The record of an index that states what it was built of."""
        return VideoRecord(root=self.root, path=self.path).described(self.about)

    def num_bytes(self, *, without: Iterable[FeatureInfo] = ()) -> int:
        """Return the size of its files, but for those of some features [bytes]."""
        others = {file.name for file in files_of(without)}
        return sum(file.num_bytes for file in self.files if file.name not in others)

    @property
    def claims(self) -> Claims:
        """Statements about its files, by which these are read."""
        return Claims(self.num_frames, self.features)

    @property
    def packs(self) -> set[str]:
        """Names of the packs that have files of it."""
        return {file.packed.pack for file in self.files if file.packed is not None}

    def unpacked(self) -> Sidecar:
        """Return a copy whose files are files of their own."""
        return self.with_places({}) if self.packs else self

    def with_places(self, places: Mapping[str, Packed]) -> Sidecar:
        """Return a copy whose files have these places in packs, by their names. Others are files of their own."""
        files = {file.name: file.replace(packed=places.get(file.name)) for file in self.files}
        features = (info.replace(file=info.file and files[info.file.name]) for info in self.features)
        return self.replace(features=tuple(features))

    def described(self, item: Description) -> Sidecar:
        """Return a copy with the labels, captions and columns of an item."""
        about = item.description()
        return self if about == self.about else self.replace(about=about)

    def with_features(self, features: Iterable[FeatureInfo]) -> Sidecar:
        """Return a copy with other features of the same frames."""
        features = in_order(features)
        frames = _frames_of(features)
        height, width = frames.shape[1:3] if frames else (self.height, self.width)
        return self.replace(features=features, width=width, height=height)

    def to_line(self) -> str:
        """Return the sealed line that is the content of the sidecar's file."""
        return seal_versioned(self)

    @classmethod
    def from_line(cls, line: str | bytes, source: str) -> Sidecar:
        """Read a sidecar's line. Raises as ``unseal_as`` does."""
        sidecar = unseal_as(line, source, cls, "a sidecar")
        if problem := sidecar._problem():
            raise DamageError(f"'{printable(source)}' is damaged: it is not a sidecar ({problem})")
        return sidecar

    def _problem(self) -> str | None:
        """Return the reason why no build can have written it, or why it names a file outside its cache, or None."""
        if not is_key(self.key):
            return "a key that no video has"
        frames = _frames_of(self.features)
        if frames is not None and frames.shape[1:3] != (self.height, self.width):
            return f"frames of {frames.shape} with the size {self.width}x{self.height}"
        if problem := path_problem(self.path):
            return f"a path that cannot be used: {problem}"
        for info in self.features:
            if info.file is not None and key_of_artefact(info.tier, info.file.name) != self.key:
                return "a file that is not one of its video's"
            if problem := feature_problem(info, self):
                return problem
        return None


def _frames_of(features: Iterable[FeatureInfo]) -> FeatureInfo | None:
    return next((info for info in features if info.feature == "frames" and info.shape), None)


def files_of(features: Iterable[FeatureInfo]) -> list[StoredFile]:
    """Return the files of features, each once."""
    return list({info.file.name: info.file for info in features if info.file is not None}.values())


def in_order(features: Iterable[FeatureInfo]) -> tuple[FeatureInfo, ...]:
    """Return features in the order of tiers and names."""
    tiers = list(TIERS)
    return tuple(sorted(features, key=lambda info: (tiers.index(info.tier), info.feature)))


def read_sidecar(cache: Path, key: str) -> Sidecar:
    """Read one sidecar.

    Raises ``NotFoundError`` if the video is not cached, ``StorageError``, and as ``unseal`` does.
    """
    return read_sidecar_line(cache, key)[0]


def not_cached(cache: Path, key: str) -> NotFoundError:
    """Return the error for a video without a sidecar."""
    return NotFoundError(f"video '{key}' is not in cache '{printable(cache)}'")


def read_sidecar_line(cache: Path, key: str) -> tuple[Sidecar, bytes]:
    """Read one sidecar, and return it with its line. Raises as ``read_sidecar`` does."""
    file = sidecar_file(key)
    path = f"{cache}/{file}"
    try:
        line = read_file(cache, file).replace(b"\r\n", b"\n")
    except FileNotFoundError:
        raise not_cached(cache, key) from None
    if not line.isascii():
        raise DamageError(f"'{printable(path)}' is damaged: it is not ASCII")
    sidecar = Sidecar.from_line(line, path)
    if sidecar.key != key:
        raise DamageError(f"'{printable(path)}' is damaged: it is the sidecar of '{printable(sidecar.key)}'")
    return sidecar, line
