"""The build of one video: one decode, every extractor, every tier, publish. It runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from chordcache import progress
from chordcache.config import PictureConfig
from chordcache.digests import digest_file
from chordcache.errors import CacheWriteError, DamageError, MediaError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.registry import FeatureSpec
from chordcache.media.source_file import SourceState, bytes_changed, check_unchanged, hash_source, look_settled
from chordcache.pipeline.plan import ArtefactTask
from chordcache.records import ContentFacts, FeatureInfo, Identity
from chordcache.storage import atomic, layout
from chordcache.storage.artefacts.open_files import FRAME_ARRAYS, create_artefact, open_artefact
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.artefacts.writer import ArtefactWriter
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar


@dataclass(frozen=True)
class BuildTask:
    """One video to build."""

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
    """Those that are missing or stale"""
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
    label: str | None = None
    caption: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    """Number of times that the task was sent, including this one"""

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


class _OtherFrames(Exception):
    """The features that were to be kept were made from other frames than those that the source has now."""


def build_video(task: BuildTask) -> Sidecar | Failure:
    """Decode one video, publish its artefacts, then its sidecar."""
    source: SourceState | None = None
    try:
        found = look_settled(task.source_path, task.inside)
        if found.identity != task.source and (task.previous is not None or task.content is not None):
            raise MediaError("open", "changed", "the file changed while it waited for its turn; run the same command")
        source = found
        digest = hash_source(task.source_path) if task.with_hash else None
        task = _compared(task, source, digest)
        if task.previous is not None and not task.artefacts:
            return _publish(task, source, digest, described(task, task.previous))
        for twin in task.twins:
            if twin.source_hash == digest:
                return _relinked(task, source, digest, twin)
        try:
            return _build(task, source, digest)
        except _OtherFrames:
            return _build(replace(task, artefacts=task.requested, kept=()), source, digest)
    except CacheWriteError:
        raise
    except OSError as error:  # libav reads the sources, so this is an error of the cache's disk
        raise CacheWriteError(
            f"cannot write to cache '{task.cache}': {error.strerror} ('{error.filename}'); run the same command"
        ) from None
    except MediaError as error:
        return _failure(task, source, _cause(task, source, error))


def _failure(task: BuildTask, source: SourceState | None, error: MediaError) -> Failure:
    of_feature = task.specs.get(error.stage) if error.cause == "extractor" else None
    return Failure(
        key=task.key,
        root=task.root,
        path=task.path,
        stage=error.stage,
        cause=error.cause,
        message=error.message,
        source=source.identity if source else None,
        num_frames_ok=error.num_frames_ok,
        attempts=task.attempt,
        fingerprints=(of_feature.fingerprint,) if of_feature else (),
    )


def _cause(task: BuildTask, source: SourceState | None, error: MediaError) -> MediaError:
    """Return the error to report. If the source changed during the decode, that change is the cause, not the error."""
    if source is not None:
        try:
            check_unchanged(task.source_path, source, task.inside, num_frames_ok=error.num_frames_ok)
        except MediaError as change:
            return change
    return error


def _compared(task: BuildTask, source: SourceState, digest: str | None) -> BuildTask:
    """Return the task for the bytes that the source has now.

    Raises
    ------
    MediaError
        ``changed`` if the bytes are not those of ``previous``, and nothing wrote to the file. Its disk lost them.
    """
    known = task.previous.source_hash if task.previous else None
    if task.previous is None or None in (known, digest) or known == digest:
        return task
    if not task.is_rewritten:
        raise bytes_changed(str(digest), str(known))
    return replace(task, previous=None, kept=(), content=None, artefacts=task.all_artefacts)


def _relinked(task: BuildTask, source: SourceState, digest: str | None, twin: Sidecar) -> Sidecar:
    """Publish the artefacts of another video of the same bytes under the names of this one."""
    with atomic.partial_folder(task.cache) as folder:
        written: dict[Path, str] = {}
        features = []
        for info in twin.features:
            file = info.file and layout.file_of_key(info.file, task.key)
            if info.file and file and file != info.file and file not in written.values():
                partial = folder / str(len(written))
                atomic.link_or_copy(task.cache / info.file, partial)
                written[partial] = file
            features.append(info.replace(file=file))
        sidecar = twin.replace(
            key=task.key, root=task.root, path=task.path, source=source.identity, features=tuple(features),
            label=task.label, caption=task.caption, extra=task.extra,
        )  # fmt: skip
        return _publish(task, source, digest, sidecar, written)


def described(task: BuildTask, sidecar: Sidecar) -> Sidecar:
    """Return a copy of a sidecar with the features that stay, and the label, caption and extra columns of the index."""
    return sidecar.replace(features=task.kept, label=task.label, caption=task.caption, extra=task.extra)


def _build(task: BuildTask, source: SourceState, digest: str | None) -> Sidecar:
    with atomic.partial_folder(task.cache) as folder:
        job = _Job(task, source, folder)
        return _publish(task, source, digest, job.run(), job.written)


def _publish(
    task: BuildTask,
    source: SourceState,
    digest: str | None,
    sidecar: Sidecar,
    written: Mapping[Path, str] = MappingProxyType({}),
) -> Sidecar:
    """Publish artefacts (partial file to final name), then the sidecar, if the source is still the decoded one."""
    if digest is not None:
        sidecar = sidecar.replace(source_hash=digest, source_ctime_ns=source.ctime_ns)
    elif task.previous is not None:
        sidecar = sidecar.replace(source_hash=task.previous.source_hash, source_ctime_ns=task.previous.source_ctime_ns)
    check_unchanged(task.source_path, source, task.inside, num_frames_ok=sidecar.num_frames)
    with progress.paused():
        for partial, file in written.items():
            atomic.publish(partial, task.cache / file)
        atomic.publish_text(task.cache, layout.sidecar_path(task.cache, task.key), sidecar.to_line() + "\n")
    return sidecar


class _Job:
    """The build of one video in a partial folder."""

    def __init__(self, task: BuildTask, source: SourceState, folder: Path) -> None:
        self._task = task
        self._source = source
        self._folder = folder
        self.written: dict[Path, str] = {}
        """Partial file to its final name, relative to the cache"""

    def run(self) -> Sidecar:
        """Extract and write everything. Return the sidecar to publish after the files."""
        task, specs = self._task, self._task.specs
        with ExitStack() as stack:
            writers = [stack.enter_context(self._writer(number)) for number in range(len(task.artefacts))]
            pairs = list(zip(task.artefacts, writers, strict=True))
            sinks = {name: [writer for artefact, writer in pairs if name in artefact.names] for name in specs}
            decode_pass = DecodePass(specs, sinks, with_content=task.content is None)
            facts = decode_pass.run(task.source_path, task.picture)
            with progress.paused():
                kept = self._kept(facts)
                made = [
                    info for artefact, writer in pairs for info in self._finish(artefact, writer, decode_pass, facts)
                ]
        return self._sidecar(facts, made, kept)

    def _kept(self, facts: DecodeResult) -> Sequence[FeatureInfo]:
        """Return the features that stay, or none if they were made from other frames.

        Raises
        ------
        _OtherFrames
            If one of these is requested, and so has to be made too.
        """
        task = self._task
        if task.previous is None or self._have_same_frames(task.previous, facts):
            return task.kept
        requested = {(artefact.tier, name) for artefact in task.requested for name in artefact.names}
        if any((info.tier, info.feature) in requested for info in task.kept):
            raise _OtherFrames
        return ()

    def _have_same_frames(self, previous: Sidecar, facts: DecodeResult) -> bool:
        """Return whether the features that stay were made from the same frames. Unreadable artefacts are skipped."""
        if previous.num_frames != len(facts.source_frames):
            return False
        for info in self._task.kept:
            if info.file is not None:
                try:
                    with open_artefact(self._task.cache / info.file, info.num_bytes) as artefact:
                        return np.array_equal(artefact.array("source_frames"), facts.source_frames)
                except DamageError:  # the next artefact may be readable
                    continue
        return True

    def _writer(self, number: int) -> ArtefactWriter:
        artefact = self._task.artefacts[number]
        return create_artefact(self._folder / f"{number}{TIERS[artefact.tier].suffix}", **artefact.options)

    def _finish(
        self, artefact: ArtefactTask, writer: ArtefactWriter, decode_pass: DecodePass, facts: DecodeResult
    ) -> list[FeatureInfo]:
        """Complete one file. Return its features, and those that the video does not have."""
        made = [(spec, self._info(artefact.tier, spec, decode_pass, facts)) for spec in artefact.features]
        present = [(spec, info) for spec, info in made if info.absent is None]
        if not present:
            return [info for _, info in made]
        writer.finish(
            {name: getattr(facts, name) for name in FRAME_ARRAYS},
            {array: _attributes(spec, info, array) for spec, info in present for array in info.num_rows},
        )
        fingerprints = {spec.name: spec.fingerprint for spec, _ in present}
        file = layout.artefact_file(
            artefact.tier, self._task.key, fingerprints, self._source.identity, self._source.ctime_ns
        )
        num_bytes, digest = writer.path.stat().st_size, digest_file(writer.path)
        if not _is_published(self._task.cache / file, digest):  # readers may have this file open
            self.written[writer.path] = file
        return [
            info if info.absent is not None else info.replace(file=file, num_bytes=num_bytes, digest=digest)
            for _, info in made
        ]

    def _info(self, tier: str, spec: FeatureSpec, decode_pass: DecodePass, facts: DecodeResult) -> FeatureInfo:
        made = decode_pass.made[spec.name]
        info = FeatureInfo(spec.name, tier, spec.fingerprint, spec.params)
        if made.absent is not None:
            return info.replace(absent=made.absent)
        shape, dtype = made.shape, made.dtype
        if spec.name == "frames":  # shape and dtype as decoded, because a JPEG record has neither
            shape, dtype = (len(facts.pts_seconds), facts.height, facts.width, 3), "uint8"
        return info.replace(shape=shape, dtype=dtype, num_rows=made.num_rows, facts=made.facts)

    def _sidecar(self, facts: DecodeResult, made: Sequence[FeatureInfo], kept: Sequence[FeatureInfo]) -> Sidecar:
        task = self._task
        order = list(TIERS)
        features = sorted((*made, *kept), key=lambda info: (order.index(info.tier), info.feature))
        notes = (*task.previous.notes, *facts.notes) if task.previous and kept else facts.notes
        frames = next((info for info in features if info.feature == "frames"), None)
        height, width = frames.shape[1:3] if frames else (facts.height, facts.width)
        pts_seconds = facts.pts_seconds
        return Sidecar(
            key=task.key,
            root=task.root,
            path=task.path,
            source=self._source.identity,
            num_frames=len(pts_seconds),
            width=width,
            height=height,
            start_seconds=float(pts_seconds[0]),
            duration_seconds=float(np.max(pts_seconds) - np.min(pts_seconds)) + facts.frame_seconds,
            timestamp_source=facts.timestamp_source,
            num_frames_skipped=facts.num_frames_skipped,
            features=tuple(features),
            label=task.label,
            caption=task.caption,
            extra=task.extra,
            notes=tuple(dict.fromkeys(notes)),
            content=task.content or facts.content,
        )


def _is_published(path: Path, digest: str) -> bool:
    """Return whether a file has this content already. It has if a new feature is absent for the video."""
    try:
        return path.is_file() and digest_file(path) == digest
    except OSError:
        return False


def _attributes(spec: FeatureSpec, info: FeatureInfo, array: str) -> dict[str, object]:
    """Return the attributes of an array in an HDF5 file."""
    part = array[len(spec.name) + 1 :]
    unit = {"units": spec.units[part]} if part in spec.units else {}
    return {**unit, "params": dict(info.params), "facts": dict(info.facts)}
