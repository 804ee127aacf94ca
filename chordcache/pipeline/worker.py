"""The build of one video: one decode, every extractor, every tier, publish. It runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from chordcache import progress
from chordcache.config import TIERS, Config
from chordcache.digests import digest_file
from chordcache.errors import CacheWriteError, ConfigError, DamageError, MediaError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.registry import FeatureSpec, resolve
from chordcache.media.source_file import SourceState, check_unchanged, hash_source, look_settled
from chordcache.pipeline.plan import ArtefactTask
from chordcache.records import ContentFacts, FeatureInfo, Identity
from chordcache.storage import atomic, layout
from chordcache.storage.artefacts.open_files import create_artefact, open_artefact
from chordcache.storage.artefacts.writer import ArtefactWriter
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar

_COPY_BYTES = 8 << 20
"""Size of the rows that are copied at a time from a replaced artefact [bytes]."""


@dataclass(frozen=True)
class BuildTask:
    """One video to build."""

    cache: Path
    key: str
    root: str
    path: str
    source_path: str
    """Absolute path"""
    config: Config
    artefacts: tuple[ArtefactTask, ...]
    inside: str | None = None
    """Real folder that no link may lead ``source_path`` out of, or None if links may"""
    source: Identity | None = None
    """Identity that ``previous`` and ``content`` belong to, or None if the file could not be read"""
    with_hash: bool = False
    """True if the sidecar must hold a hash of the source's bytes"""
    previous: Sidecar | None = None
    """Existing sidecar, whose artefacts are kept if the source is the same"""
    content: ContentFacts | None = None
    """Facts that a scan measured, so that the build does not measure them again"""
    label: str | None = None
    caption: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    attempt: int = 1
    """Number of times that the task was sent, including this one"""

    @property
    def adds_hash(self) -> bool:
        """True if the existing sidecar lacks the hash that it must hold."""
        return self.with_hash and self.previous is not None and self.previous.source_hash is None


class _CannotKeep(Exception):
    """A feature that was to be kept does not match the source."""


def build_video(task: BuildTask) -> Sidecar | Failure:
    """Decode one video, publish its artefacts, then its sidecar."""
    source: SourceState | None = None
    try:
        found = look_settled(task.source_path, task.inside)
        if found.identity != task.source and (task.previous is not None or task.content is not None):
            raise MediaError("open", "changed", "the file changed while it waited for its turn; run the same command")
        source = found
        if task.previous is not None and not task.artefacts:
            return _publish(task, source, described(task, task.previous))
        try:
            return _build(task, source)
        except _CannotKeep:
            return _build(_from_scratch(task), source)
    except CacheWriteError:
        raise
    except OSError as error:  # libav reads the sources, so this is an error of the cache's disk
        raise CacheWriteError(
            f"cannot write to cache '{task.cache}': {error.strerror} ('{error.filename}'); run the same command"
        ) from None
    except MediaError as error:
        return _failure(task, source, _cause(task, source, error))


def _failure(task: BuildTask, source: SourceState | None, error: MediaError) -> Failure:
    is_of_feature = error.cause == "extractor"
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
        fingerprints=(resolve(error.stage, task.config).fingerprint,) if is_of_feature else (),
    )


def _cause(task: BuildTask, source: SourceState | None, error: MediaError) -> MediaError:
    """Return the error to report. If the source changed during the decode, that change is the cause, not the error."""
    if source is not None:
        try:
            check_unchanged(task.source_path, source, task.inside, num_frames_ok=error.num_frames_ok)
        except MediaError as change:
            return change
    return error


def described(task: BuildTask, sidecar: Sidecar) -> Sidecar:
    """Return a copy of a sidecar with the label, caption and extra columns that the index has now."""
    return replace(sidecar, label=task.label, caption=task.caption, extra=task.extra)


def _from_scratch(task: BuildTask) -> BuildTask:
    """Return a copy of the task that makes every feature and keeps none in the files to write."""
    artefacts = tuple(
        ArtefactTask(each.tier, (*each.make, *(info.feature for info in each.keep))) for each in task.artefacts
    )
    return replace(task, artefacts=artefacts)


def _build(task: BuildTask, source: SourceState) -> Sidecar:
    with atomic.partial_folder(task.cache) as folder:
        job = _Job(task, source.identity, folder)
        return _publish(task, source, job.run(), job.written)


def _publish(
    task: BuildTask, source: SourceState, sidecar: Sidecar, written: Mapping[Path, str] = MappingProxyType({})
) -> Sidecar:
    """Publish artefacts (partial file to final name), then the sidecar, if the source is still the decoded one."""
    sidecar = replace(sidecar, source_hash=_source_hash(task))
    check_unchanged(task.source_path, source, task.inside, num_frames_ok=sidecar.num_frames)
    with progress.paused():
        for partial, file in written.items():
            atomic.publish(partial, task.cache / file)
        atomic.publish_text(task.cache, layout.sidecar_path(task.cache, task.key), sidecar.to_line() + "\n")
    return sidecar


def _source_hash(task: BuildTask) -> str | None:
    """Return the hash for the sidecar. An earlier hash is kept, and compared with the source."""
    known = task.previous.source_hash if task.previous else None
    if not task.with_hash:
        return known
    return hash_source(task.source_path, known)


class _Job:
    """The build of one video in a partial folder."""

    def __init__(self, task: BuildTask, source: Identity, folder: Path) -> None:
        self._task = task
        self._source = source
        self._folder = folder
        names = dict.fromkeys(name for each in task.artefacts for name in each.make)
        self._specs = {name: resolve(name, task.config) for name in names}
        self.written: dict[Path, str] = {}
        """Partial file to its final name, relative to the cache"""

    def run(self) -> Sidecar:
        """Extract and write everything. Return the sidecar to publish after the files."""
        task = self._task
        with ExitStack() as stack:
            writers = {each.tier: stack.enter_context(self._writer(each.tier)) for each in task.artefacts}
            sinks = {name: [writers[each.tier] for each in task.artefacts if name in each.make] for name in self._specs}
            decode_pass = DecodePass(self._specs, sinks, with_content=task.content is None)
            facts = decode_pass.run(task.source_path, task.config.picture)
            with progress.paused():
                others = self._others(facts)
                made = [
                    info
                    for each in task.artefacts
                    for info in self._finish(each, writers[each.tier], decode_pass, facts)
                ]
        return self._sidecar(facts, (*made, *others))

    def _others(self, facts: DecodeResult) -> list[FeatureInfo]:
        """Return the features of the tiers that are not written, or none if they were made from other frames."""
        task = self._task
        if task.previous is None:
            return []
        tiers = {each.tier for each in task.artefacts}
        others = [info for info in task.previous.features if info.tier not in tiers]
        kept = [info for each in task.artefacts for info in each.keep if info.absent is None]
        if task.previous.num_frames == len(facts.source_frames) and self._have_same_frames((*others, *kept), facts):
            return others
        if kept:
            raise _CannotKeep
        return []

    def _have_same_frames(self, infos: Sequence[FeatureInfo], facts: DecodeResult) -> bool:
        """Return whether the kept features were made from the same frames of the source. Skip unreadable artefacts."""
        for info in infos:
            if info.file is not None:
                try:
                    with open_artefact(self._task.cache / info.file, info.num_bytes) as artefact:
                        return np.array_equal(artefact.array("source_frames"), facts.source_frames)
                except DamageError:  # the next artefact may be readable
                    continue
        return True

    def _writer(self, tier: str) -> ArtefactWriter:
        config = self._task.config
        path = self._folder / f"artefact{layout.TIER_SUFFIXES[tier]}"
        if tier == "hdf5":
            return create_artefact(path, compression=config.hdf5.compression, chunk_frames=config.hdf5.chunk_frames)
        return create_artefact(path, compression=config.npz.compression if tier == "npz" else "none")

    def _finish(
        self, artefact: ArtefactTask, writer: ArtefactWriter, decode_pass: DecodePass, facts: DecodeResult
    ) -> list[FeatureInfo]:
        """Complete one file. Return the features in it."""
        made = [self._info(artefact.tier, self._specs[name], decode_pass, facts) for name in artefact.make]
        infos = [*made, *artefact.keep]
        present = [info for info in infos if info.absent is None]
        if not present or (present == self._present_before(artefact) and all(info.absent is not None for info in made)):
            return infos  # the existing file needs no addition
        for info in artefact.keep:
            if info.absent is None:
                self._copy(info, writer)
        writer.finish(
            {"pts_seconds": facts.pts_seconds, "source_frames": facts.source_frames},
            {array: self._attributes(info, array) for info in present for array in info.num_rows},
        )
        partial = self._folder / f"artefact{layout.TIER_SUFFIXES[artefact.tier]}"
        fingerprints = sorted(info.fingerprint for info in present)
        file = layout.artefact_file(artefact.tier, self._task.key, fingerprints, self._source)
        num_bytes, digest = partial.stat().st_size, digest_file(partial)
        self.written[partial] = file
        return [
            info if info.absent is not None else replace(info, file=file, num_bytes=num_bytes, digest=digest)
            for info in infos
        ]

    def _present_before(self, artefact: ArtefactTask) -> list[FeatureInfo]:
        """Return the kept features if the file to replace holds exactly these, else []."""
        before = (
            [info for info in self._task.previous.features if info.tier == artefact.tier and info.file]
            if self._task.previous
            else []
        )
        kept = [info for info in artefact.keep if info.absent is None]
        return kept if {info.feature for info in kept} == {info.feature for info in before} else []

    def _info(self, tier: str, spec: FeatureSpec, decode_pass: DecodePass, facts: DecodeResult) -> FeatureInfo:
        made = decode_pass.made[spec.name]
        info = FeatureInfo(spec.name, tier, spec.fingerprint, spec.params)
        if made.absent is not None:
            return replace(info, absent=made.absent)
        shape, dtype = made.shape, made.dtype
        if spec.name == "frames":  # shape and dtype as decoded, because a JPEG record has neither
            shape, dtype = (len(facts.pts_seconds), facts.height, facts.width, 3), "uint8"
        return replace(info, shape=shape, dtype=dtype, num_rows=made.num_rows, facts=made.facts)

    def _copy(self, info: FeatureInfo, writer: ArtefactWriter) -> None:
        """Copy an up-to-date feature from the published file."""
        try:
            with open_artefact(self._task.cache / str(info.file), info.num_bytes) as artefact:
                for array, num_rows in info.num_rows.items():
                    if info.feature == "frames" and info.params["codec"] == "jpeg":
                        for record in artefact.records(array, range(num_rows)):
                            writer.append(array, [bytes(record)])
                        continue
                    writer.append(array, artefact.rows(array, range(0)))
                    row_bytes = max(1, artefact.rows(array, range(min(1, num_rows))).nbytes)
                    step = max(1, _COPY_BYTES // row_bytes)
                    for start in range(0, num_rows, step):
                        writer.append(array, artefact.rows(array, range(start, min(start + step, num_rows))))
        except DamageError:
            raise _CannotKeep from None

    def _attributes(self, info: FeatureInfo, array: str) -> dict[str, object]:
        """Return the attributes of an array in an HDF5 file."""
        try:
            units = resolve(info.feature, self._task.config).units
        except ConfigError:  # a kept feature of a plug-in that is not installed here
            units = {}
        part = array[len(info.feature) + 1 :]
        unit = {"units": units[part]} if part in units else {}
        return {**unit, "params": dict(info.params), "facts": dict(info.facts)}

    def _sidecar(self, facts: DecodeResult, infos: Sequence[FeatureInfo]) -> Sidecar:
        task = self._task
        features = sorted(infos, key=lambda info: (TIERS.index(info.tier), info.feature))
        made = {name for each in task.artefacts for name in each.make}
        stays = task.previous is not None and any(info.feature not in made for info in infos)
        notes = (*task.previous.notes, *facts.notes) if task.previous and stays else facts.notes
        frames = next((info for info in features if info.feature == "frames"), None)
        height, width = frames.shape[1:3] if frames else (facts.height, facts.width)
        pts_seconds = facts.pts_seconds
        return Sidecar(
            key=task.key,
            root=task.root,
            path=task.path,
            source=self._source,
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
