"""The sidecar of a video: the JSON file whose replacement commits the video's artefacts."""

from __future__ import annotations

import os
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError, printable
from chordcache.records import ContentFacts, Count, DamageFacts, Description, FeatureInfo, Identity, View
from chordcache.storage.layout import is_artefact_file, path_problem, sidecar_path
from chordcache.storage.readable import read_small
from chordcache.storage.sealed_json import seal_versioned, unseal_as


class Sidecar(Description, frozen=True):
    """The commit record of one video."""

    key: str
    root: str
    path: str
    source: Identity
    num_frames: Count
    width: Count
    """[pixels] of the cached frames"""
    height: Count
    """[pixels] of the cached frames"""
    start_seconds: float
    """[seconds] presentation time of the first cached frame"""
    duration_seconds: float
    """[seconds] to the end of the last cached frame"""
    timestamp_source: str
    features: tuple[FeatureInfo, ...]
    num_frames_skipped: int = 0
    """Frames of the source before the first frame that can be decoded"""
    notes: tuple[str, ...] = ()
    """Changes to the picture that the numbers of the sidecar do not show"""
    content: ContentFacts | None = None
    """Motion of the picture and loudness of the sound"""
    source_hash: str | None = None
    """xxh3-128 of the source's bytes, 32 hex digits, or None if no build was asked for it"""
    source_ctime_ns: int | None = None
    """[nanoseconds since the epoch] ctime of the source when it was hashed. If it differs, the hash is made again"""
    view: View | None = None
    """Rows of the item in its artefacts, if these hold the whole file and this is a segment of it"""
    damage: DamageFacts | None = None
    """First damage of the source, if ``frames.on_damage`` kept the frames before it"""

    @property
    def first_row(self) -> int:
        """Row of the first frame in the artefacts."""
        return self.view.first_frame if self.view else 0

    @property
    def num_stored_frames(self) -> int:
        """Number of frames in the artefacts."""
        return self.view.num_frames if self.view else self.num_frames

    display_width: Count | None = None
    """[pixels] of the source as a player shows it, or of one eye of it. None in sidecars of earlier builds"""
    display_height: Count | None = None
    """[pixels] See ``display_width``"""
    display_crop: tuple[float, float, float, float] | None = None
    """(left, top, width, height) [pixels of display_width x display_height] of the part that the cached frames show, if
    they were cut to a bucket"""

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo | None:
        """Return the entry of a feature, in ``tier`` or in the first tier that holds the feature."""
        return next((f for f in self.features if f.feature == name and tier in (None, f.tier)), None)

    def to_line(self) -> str:
        """Return the sealed line that is the content of the sidecar's file."""
        return seal_versioned(self)

    @classmethod
    def from_line(cls, line: str, source: str) -> Sidecar:
        """Read a sidecar's line. Raises as ``unseal_as`` does."""
        sidecar = unseal_as(line, source, cls, "a sidecar")
        if problem := sidecar._problem():
            raise DamageError(f"'{printable(source)}' is damaged: it is not a sidecar ({problem})")
        return sidecar

    def _problem(self) -> str | None:
        """Return the reason why it names a file outside its cache, or a source outside its root, or None."""
        if problem := path_problem(self.path):
            return f"a path that cannot be used: {problem}"
        if self.view and self.view.first_frame + self.num_frames > self.view.num_frames:
            return "rows that its artefacts do not have"
        for info in self.features:
            if info.file is not None and not (
                is_artefact_file(info.tier, info.file) and os.path.basename(info.file).startswith(f"{self.key}.")
            ):
                return "a file that is not one of its video's"
        return None


def read_sidecar(cache: Path, key: str) -> Sidecar:
    """Read one sidecar.

    Raises
    ------
    NotFoundError
        If the video is not cached.
    DamageError, FormatVersionError
        As in ``unseal``.
    UnreadableError
        If the file cannot be read.
    """
    path = sidecar_path(cache, key)
    try:
        line = read_small(path).decode("ascii").replace("\r\n", "\n")
    except FileNotFoundError:
        raise NotFoundError(f"video '{key}' is not in cache '{printable(cache)}'") from None
    except UnicodeDecodeError:
        raise DamageError(f"'{printable(path)}' is damaged: it is not ASCII") from None
    sidecar = Sidecar.from_line(line, str(path))
    if sidecar.key != key:
        raise DamageError(f"'{printable(path)}' is damaged: it is the sidecar of '{printable(sidecar.key)}'")
    return sidecar
