"""The order for one item of a build, which a worker process gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chordcache.choices import ON_DAMAGE
from chordcache.config.frames import PictureConfig
from chordcache.features.registry import FeatureSpec
from chordcache.pipeline.plan import ArtefactTask
from chordcache.records import ContentFacts, DamageFacts, Description, FeatureInfo, Identity, VideoRecord
from chordcache.storage.sidecar import Sidecar


@dataclass(frozen=True)
class BuildTask:
    """One item to build: a file, or a segment of one."""

    cache: Path
    key: str
    root: str
    path: str
    source_path: str
    """Absolute path"""
    picture: PictureConfig
    requested: tuple[ArtefactTask, ...]
    """Files that the video has when it is up to date"""
    artefacts: tuple[ArtefactTask, ...]
    """Artefacts that are missing or stale"""
    all_artefacts: tuple[ArtefactTask, ...] = ()
    """Files that are made if the source turns out to be another one than that of ``previous``"""
    inside: str | None = None
    """Real folder that no link may lead ``source_path`` out of, or None if links may"""
    source: Identity | None = None
    """Identity that ``previous`` and ``content`` belong to, or None if the file could not be read"""
    with_hash: bool = False
    """True if the sidecar must hold a hash of the source's bytes"""
    is_rewritten: bool = False
    """True if the source may have been written to since the hash in ``previous``: its ctime is another one"""
    twins: tuple[Sidecar, ...] = ()
    """Cached videos with all requested features. If the source has the bytes of one of them, nothing is decoded"""
    previous: Sidecar | None = None
    """Existing sidecar of the same source"""
    kept: tuple[FeatureInfo, ...] = ()
    """Its features that stay"""
    content: ContentFacts | None = None
    """Facts that a scan measured, so that the build does not measure them again"""
    description: Description = field(default_factory=Description)
    """Segment, label, caption and other columns of the index"""
    seconds: float | None = None
    """[seconds] Length of the video as the index states it"""
    row: int = 0
    """Number of its row in the index, from 1; 0 if it is not from an index"""
    attempt: int = 1
    """Number of times that the task was sent, including this one"""
    on_damage: str = ON_DAMAGE[0]
    """One of ``ON_DAMAGE``"""
    damage: DamageFacts | None = None
    """Damage of the source before which the item ends, or None if damage is an error"""

    @property
    def item(self) -> VideoRecord:
        """The item, with the fields that an extractor may use."""
        return VideoRecord(self.root, self.path).described(self.description)

    @property
    def takes_part(self) -> bool:
        """True if only its own frames of the file are decoded: those of a segment, or in a bucket."""
        return self.description.segment is not None or self.picture.buckets is not None

    @property
    def needs_hash(self) -> bool:
        """True if the source must be hashed, although the existing sidecar may be up to date otherwise."""
        if not self.with_hash or self.previous is None:
            return False
        return self.is_rewritten or self.previous.source_hash is None

    @property
    def specs(self) -> dict[str, FeatureSpec]:
        """Features to extract, by name."""
        return {spec.name: spec for artefact in self.artefacts for spec in artefact.features}

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Fingerprints of the features to extract."""
        return tuple(spec.fingerprint for spec in self.specs.values())
