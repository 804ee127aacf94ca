"""The build of the items of one file: one decode for all of them, every extractor, every tier, publish.

It runs in a worker process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from chordcache import progress
from chordcache.building.build_plan import ArtefactTask
from chordcache.building.build_task import BuildTask, compared, has_same_frames
from chordcache.building.existing_cache import writing_to
from chordcache.config.picture import Bucket
from chordcache.digests import digest_file
from chordcache.errors import DamageError, MediaError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.feed import decode_segments, decode_whole
from chordcache.features.item_fields import hash_of_fields
from chordcache.features.registry import FeatureSpec
from chordcache.media.audio_track import Sound
from chordcache.media.demux import Media
from chordcache.media.source_file import OpenSource, SourceState, check_unchanged, hash_source, open_source
from chordcache.storage import atomic, feature_files, layout
from chordcache.storage.artefacts.open_files import FRAME_ARRAYS, create_artefact
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.artefacts.writer import ArtefactWriter
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar, in_order

_PICTURE_FACTS = ("duration_seconds", "display_width", "display_height", "display_crop", "notes")
"""Facts of an item that follow from the settings of its pictures. With others, earlier features are not taken back"""

Outcomes: TypeAlias = dict[str, Sidecar | Failure]
"""Key to the published sidecar, or the reason why there is none."""


def build_file(tasks: Sequence[BuildTask]) -> list[Sidecar | Failure]:
    """Decode the source of some items once, and publish the artefacts of each, then its sidecar.

    Returns the outcome of each task. The failure of one item does not end the others. Raises ``CacheWriteError`` if the
    disk of the cache fails, and ``UnreadableError`` if a folder or a file of the cache is a link.
    """
    source: OpenSource | None = None
    with writing_to(tasks[0].cache):  # libav reads the sources, so errors are those of the cache's disk
        try:
            with open_source(tasks[0].source_path, tasks[0].inside, settled=True) as source:
                digest = None
                if tasks[0].hashing is not None:
                    progress.expect(source.state.identity.size)
                    digest = hash_source(source.place)
                outcomes = _built_from(source, digest, tasks)
        except MediaError as error:
            outcomes = {task.key: _failure_of(task, source.state if source else None, error) for task in tasks}
    return [outcomes[task.key] for task in tasks]


def _built_from(source: OpenSource, digest: str | None, tasks: Sequence[BuildTask]) -> Outcomes:
    """Build what is missing. Items that only need other names or another label take no decode."""
    state = source.state
    outcomes: Outcomes = {}
    remaining = []
    for planned in tasks:
        try:
            task = compared(planned, state, digest)
            sidecar = _published(task, state, digest)
        except MediaError as error:
            outcomes[planned.key] = _failure_of(planned, state, error)
            continue
        if sidecar is None:
            remaining.append(task)
        else:
            outcomes[task.key] = sidecar
    parts = [task for task in remaining if task.takes_part]
    for group in (parts, *([task] for task in remaining if not task.takes_part)):
        decoded = _decoded(group, source, digest)
        again = [task for task in group if task.key not in decoded]
        failed: Outcomes = {task.key: loss for task in again if (loss := _loss(task, state)) is not None}
        whole = [replace(task, artefacts=task.all_artefacts, kept=()) for task in again if task.key not in failed]
        outcomes |= {**decoded, **failed, **_decoded(whole, source, digest)}
    return outcomes


def _published(task: BuildTask, source: SourceState, digest: str | None) -> Sidecar | None:
    """Publish an item that needs no decode, and return its sidecar. Return None if it needs one."""
    if task.described is not None and not task.artefacts:
        return _publish_item(task, source, digest, task.described)
    for twin in task.hashing.twins if task.hashing is not None else ():
        if twin.source_hash == digest:
            return _relinked(task, source, digest, twin)
    return None


def _decoded(tasks: Sequence[BuildTask], source: OpenSource, digest: str | None) -> Outcomes:
    """Build segments, or one file. Items whose features must all be made again have no outcome."""
    if tasks and tasks[0].takes_part:
        return _decoded_parts(tasks, source, digest)
    outcomes: Outcomes = {}
    for task in tasks:
        try:
            outcome = _decoded_whole(task, source, digest)
        except MediaError as error:
            outcome = _failure_of(task, source.state, error)
        outcomes |= {} if outcome is None else {task.key: outcome}
    return outcomes


def _decoded_whole(task: BuildTask, source: OpenSource, digest: str | None) -> Sidecar | Failure | None:
    with _ItemBuild(task, source.state, digest) as item:
        decode_whole(source.place, item)
        return item.outcome


def _decoded_parts(tasks: Sequence[BuildTask], source: OpenSource, digest: str | None) -> Outcomes:
    """Build items of which only their own frames are decoded."""
    failed: Outcomes = {}
    with ExitStack() as stack:
        items = {task.key: stack.enter_context(_ItemBuild(task, source.state, digest)) for task in tasks}
        try:
            decode_segments(source.place, list(items.values()))
        except MediaError as error:
            failed = {task.key: _failure_of(task, source.state, error) for task in tasks}
        return failed | {key: item.outcome for key, item in items.items() if item.outcome is not None}


def _loss(task: BuildTask, source: SourceState) -> Failure | None:
    """Return the failure of an item whose frames are others, if not all of its features can be made of them."""
    requested = {(artefact.tier, name) for artefact in task.all_artefacts for name in artefact.names}
    lost = [info.feature for info in task.kept if (info.tier, info.feature) not in requested]
    if not lost:
        return None
    names = ", ".join(dict.fromkeys(lost))
    what = f"its frames are others now, and {names} cannot be made of them here"
    error = MediaError("publish", "features", f"{what}. Install what it needs, or build with --drop {lost[0]}.")
    return _failure_of(task, source, error)


def _relinked(task: BuildTask, source: SourceState, digest: str | None, twin: Sidecar) -> Sidecar:
    """Publish the artefacts of another video of the same bytes under the names of this one."""
    with atomic.partial_folder(task.cache) as folder:
        written: dict[Path, str] = {}
        features = []
        for info in twin.features:
            file = info.file and layout.file_of_key(info.file, task.key)
            if info.file and file and file != info.file and file not in written.values():
                partial = folder / str(len(written))
                feature_files.copy(task.cache, info, partial)
                written[partial] = file
            features.append(info.replace(file=file, packed=None))
        sidecar = twin.replace(
            key=task.key,
            root=task.item.root,
            path=task.item.path,
            source=source.identity,
            features=tuple(features),
            superseded=(),
        ).described(task.item)
        return _publish_item(task, source, digest, sidecar, written)


class _ItemBuild(DecodePass):
    """The decode of one item into a partial folder, which is published at its end.

    ``source`` is the state of the source before the decode, and ``digest`` the hash of its bytes, if one was asked for.
    ``segment`` is the part to decode, or None for the whole file.
    ``outcome`` is None until the item is published or has failed, and stays None if every feature must be made again.
    """

    def __init__(self, task: BuildTask, source: SourceState, digest: str | None) -> None:
        self._writers_of: dict[str, list[ArtefactWriter]] = {name: [] for name in task.specs}
        with_content = task.item.content is None
        super().__init__(task.specs, self._writers_of, task.picture, with_content=with_content, item=task.item)
        self._task, self._source, self._digest = task, source, digest
        self._stack, self._writers = ExitStack(), ExitStack()
        self._pairs: list[tuple[ArtefactTask, ArtefactWriter]] = []
        self._written: dict[Path, str] = {}
        """Partial file to its final name, relative to the cache"""
        self.segment = task.item.segment
        self.outcome: Sidecar | Failure | None = None

    def __enter__(self) -> _ItemBuild:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._writers.close()
        self._stack.close()

    def begin(self, media: Media, bucket: Bucket | None = None) -> None:
        """Make the writers and the extractors."""
        folder = self._stack.enter_context(atomic.partial_folder(self._task.cache))
        for number, artefact in enumerate(self._task.artefacts):
            path = folder / f"{number}{TIERS[artefact.tier].suffix}"
            writer = self._writers.enter_context(create_artefact(path, **artefact.options))
            self._pairs.append((artefact, writer))
            for name in artefact.names:
                self._writers_of[name].append(writer)
        super().begin(media, bucket)

    def finish(self, media: Media, sounds: Iterable[Sound] = (), end_seconds: float | None = None) -> DecodeResult:
        """Take the remaining sound, and publish the item, unless the features to keep were made from other frames."""
        facts = super().finish(media, sounds, end_seconds)
        task, previous = self._task, self._task.previous
        with progress.paused():
            if previous and not has_same_frames(task.cache, previous, task.kept, facts.source_frames):
                previous = None
            is_complete = previous is not None or not task.kept
            pairs = self._pairs if is_complete else ()
            infos = [info for artefact, writer in pairs for info in self._complete(artefact, writer, facts)]
        if is_complete:
            self._writers.close()
            sidecar = self._sidecar(facts, infos, previous)
            self.outcome = _publish_item(task, self._source, self._digest, sidecar, self._written)
        self._close()
        return facts

    def fail(self, error: MediaError) -> None:
        """Give the item up."""
        self.outcome = _failure_of(self._task, self._source, error)
        self._close()

    def _complete(self, artefact: ArtefactTask, writer: ArtefactWriter, facts: DecodeResult) -> list[FeatureInfo]:
        """Complete one file. Return its features, and those that the video does not have."""
        infos = [(spec, self._info(artefact.tier, spec, facts)) for spec in artefact.features]
        present = [(spec, info) for spec, info in infos if info.absent is None]
        if not present:
            return [info for _, info in infos]
        writer.finish(
            {name: getattr(facts, name) for name in FRAME_ARRAYS},
            {array: _attributes(spec, info, array) for spec, info in present for array in info.num_rows},
        )
        num_bytes, digest = writer.path.stat().st_size, digest_file(writer.path)
        fingerprints = {spec.name: spec.fingerprint for spec, _ in present}
        source = self._source.identity, self._source.ctime_ns
        file = layout.artefact_file(artefact.tier, self._task.key, fingerprints, *source, digest)
        stored = [
            info if info.absent is not None else info.replace(file=file, num_bytes=num_bytes, digest=digest)
            for _, info in infos
        ]
        if not all(feature_files.is_intact(self._task.cache, info) for info in stored):  # readers may have it open
            self._written[writer.path] = file
        return stored

    def _info(self, tier: str, spec: FeatureSpec, facts: DecodeResult) -> FeatureInfo:
        state = self.results[spec.name]
        used = hash_of_fields(spec.uses, self._task.item)
        info = FeatureInfo(spec.name, tier, spec.fingerprint, spec.params, uses=spec.uses, used=used)
        if state.absent is not None:
            return info.replace(absent=state.absent)
        shape, dtype = state.shape, state.dtype
        if spec.name == "frames":  # shape and dtype as decoded, because a JPEG record has neither
            shape, dtype = (len(facts.pts_seconds), facts.height, facts.width, 3), "uint8"
        return info.replace(shape=shape, dtype=dtype, num_rows=state.num_rows, facts=state.facts)

    def _sidecar(self, facts: DecodeResult, infos: Sequence[FeatureInfo], previous: Sidecar | None) -> Sidecar:
        """Return the sidecar of the item. ``previous`` is the existing one, if it is of the same frames."""
        task, item, kept = self._task, self._task.item, self._task.kept
        features = in_order((*infos, *kept))
        notes = (*previous.notes, *facts.notes) if previous and kept else facts.notes
        frames = next((info for info in features if info.feature == "frames"), None)
        height, width = frames.shape[1:3] if frames else (facts.height, facts.width)
        pts_seconds = facts.pts_seconds
        sidecar = Sidecar(
            key=task.key,
            root=item.root,
            path=item.path,
            source=self._source.identity,
            num_frames=len(pts_seconds),
            width=width,
            height=height,
            start_seconds=float(pts_seconds[0]),
            duration_seconds=float(np.max(pts_seconds) - np.min(pts_seconds)) + facts.frame_seconds,
            timestamp_source=facts.timestamp_source,
            num_frames_skipped=facts.num_frames_skipped,
            features=features,
            notes=tuple(dict.fromkeys(notes)),
            content=item.content or facts.content,
            display_width=facts.display_size[0],
            display_height=facts.display_size[1],
            display_crop=previous.display_crop if previous and frames in kept else facts.display_crop,
        ).described(item)
        if previous is None or any(getattr(previous, name) != getattr(sidecar, name) for name in _PICTURE_FACTS):
            return sidecar
        return sidecar.replace(superseded=previous.with_features(features).superseded)


def _failure_of(task: BuildTask, source: SourceState | None, error: MediaError) -> Failure:
    """Return the failure of an item.

    If the source changed during the decode, that change is the cause, not the error.
    """
    if source is not None:
        try:
            check_unchanged(task.source_path, source, task.inside, num_frames_ok=error.num_frames_ok)
        except MediaError as change:
            error = change
    row = f"row {task.row} of the index: " if error.cause == "segment" and task.row else ""
    return task.failed(
        error.stage,
        error.cause,
        row + error.message,
        source.identity if source else None,
        num_frames_ok=error.num_frames_ok,
        attempts=task.attempt,
        fingerprints=tuple(  # of the features whose parameters have a part in it: with others, the item may be built
            spec.fingerprint
            for name, spec in task.specs.items()
            if name == error.stage or error.cause == "features" or (error.cause == "bucket" and spec.buckets)
        ),
    )


def _publish_item(
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
    line, name = sidecar.to_line(), layout.sidecar_file(task.key)
    try:
        Sidecar.from_line(line, name)
    except DamageError as error:  # a file may state any numbers, and readers have bounds
        raise MediaError("decode", "decode", f"it has facts that cannot be cached: {error}") from None
    with progress.paused():
        atomic.publish_all(task.cache, written)
        atomic.publish_text(task.cache, name, line + "\n")
    return sidecar


def _attributes(spec: FeatureSpec, info: FeatureInfo, array: str) -> dict[str, object]:
    """Return the attributes of an array in an HDF5 file."""
    part = array[len(spec.name) + 1 :]
    unit = {"units": spec.units[part]} if part in spec.units else {}
    return {**unit, "params": dict(info.params), "facts": dict(info.facts)}
