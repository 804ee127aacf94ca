"""The order for one item of a build, which a worker process gets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from chordcache.building.build_plan import ArtefactTask
from chordcache.config.picture import PictureConfig
from chordcache.features.registry import FeatureSpec
from chordcache.records import FeatureInfo, VideoRecord
from chordcache.storage import layout
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar


@dataclass(frozen=True)
class Hashing:
    """The facts of an item whose source is hashed."""

    is_rewritten: bool = False
    """True if the source may have been written to since the hash in ``previous``: its ctime is another one"""
    twins: tuple[Sidecar, ...] = ()
    """Cached videos with all requested features. If the source has the bytes of one of them, nothing is decoded"""


@dataclass(frozen=True)
class BuildTask:
    """One item to build: a file, or a segment of one."""

    cache: Path
    item: VideoRecord
    """Record of the index. ``identity`` is that of the source which ``previous`` and ``content`` belong to, or None if
    the file could not be read. ``content`` are the facts that the build does not measure again"""
    source_path: str
    """Absolute path"""
    inside: str | None
    """Real folder that no link may lead ``source_path`` out of, or None if links may"""
    picture: PictureConfig
    artefacts: tuple[ArtefactTask, ...]
    """Artefacts that are missing or stale"""
    all_artefacts: tuple[ArtefactTask, ...] = ()
    """Files that are made if the source turns out to be another one than that of ``previous``"""
    previous: Sidecar | None = None
    """Existing sidecar of the same source"""
    kept: tuple[FeatureInfo, ...] = ()
    """Its features that stay"""
    hashing: Hashing | None = None
    """None if the sidecar needs no hash of the source's bytes"""
    may_trim: bool = False
    """True to cache the frames before the first damage of the source, False if damage is an error"""
    failure: Failure | None = None
    """Failure of the scan or of an earlier build that would occur again"""
    row: int = 0
    """Number of its row in the index, from 1; 0 if it is not from an index"""
    attempt: int = 1
    """Number of times that the task was sent, including this one"""

    @cached_property
    def key(self) -> str:
        """Name in the cache."""
        return layout.key_of(self.item)

    @property
    def state(self) -> str:
        """State in the plan: "missing", "up to date", or "failed" if it would fail again."""
        if not self.artefacts and not self.needs_hash:
            return "up to date"
        return "missing" if self.failure is None else "failed"

    @property
    def takes_part(self) -> bool:
        """True if only its own frames of the file are decoded: those of a segment, or in a bucket."""
        return self.item.segment is not None or self.picture.buckets is not None

    @property
    def needs_hash(self) -> bool:
        """True if the source must be hashed, although the existing sidecar may be up to date otherwise."""
        if self.hashing is None or self.previous is None:
            return False
        return self.hashing.is_rewritten or self.previous.source_hash is None

    @property
    def specs(self) -> dict[str, FeatureSpec]:
        """Features to extract, by name."""
        return {spec.name: spec for artefact in self.artefacts for spec in artefact.features}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the features to extract."""
        return tuple(spec.fingerprint for spec in self.specs.values())

    @property
    def described(self) -> Sidecar | None:
        """Its sidecar with the features that stay, and the label, caption and extra columns of the index."""
        return None if self.previous is None else self.previous.with_features(self.kept).described(self.item)
