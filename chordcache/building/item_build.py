"""The build of one item from the frames of its source: every extractor, every tier, publish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import numpy as np

from chordcache import progress
from chordcache.building.build_plan import ArtefactTask
from chordcache.building.build_task import BuildTask
from chordcache.building.up_to_date import has_same_frames
from chordcache.config.picture import Bucket
from chordcache.digests import digest_file
from chordcache.errors import MediaError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.item_fields import hash_of_fields
from chordcache.features.registry import FeatureSpec
from chordcache.media.audio_track import Sound
from chordcache.media.demux import Media
from chordcache.media.source_file import SourceState, check_unchanged
from chordcache.records import FeatureInfo
from chordcache.storage import atomic, feature_files, layout
from chordcache.storage.artefacts.open_files import FRAME_ARRAYS, create_artefact
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.artefacts.writer import ArtefactWriter
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar, in_order


class ItemBuild(DecodePass):
    """The decode of one item into a partial folder, which is published at its end.

    Parameters
    ----------
    task : BuildTask
        The item.
    source : SourceState
        State of the source before the decode.
    digest : str or None
        Hash of its bytes, if one was asked for.

    Attributes
    ----------
    segment : Segment or None
        Segment to decode, or None for the whole file.
    outcome : Sidecar or Failure or None
        The published sidecar, or the reason why there is none. None as long as the item is not complete, and if all of
        its features must be made.
    """

    def __init__(self, task: BuildTask, source: SourceState, digest: str | None) -> None:
        self._writers_of: dict[str, list[ArtefactWriter]] = {name: [] for name in task.specs}
        with_content = task.item.content is None
        super().__init__(task.specs, self._writers_of, task.picture, with_content=with_content, item=task.item)
        self._task = task
        self._source = source
        self._digest = digest
        self._stack = ExitStack()
        self._writers = ExitStack()
        self._written: dict[Path, str] = {}
        """Partial file to its final name, relative to the cache"""
        self.segment = task.item.segment
        self.outcome: Sidecar | Failure | None = None

    def __enter__(self) -> ItemBuild:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._writers.close()
        self._stack.close()

    def begin(self, media: Media, bucket: Bucket | None = None) -> None:
        """Make the writers and the extractors."""
        artefacts = self._task.artefacts
        self._folder = self._stack.enter_context(atomic.partial_folder(self._task.cache))
        writers = [self._writers.enter_context(self._writer(number)) for number in range(len(artefacts))]
        self._pairs = list(zip(artefacts, writers, strict=True))
        for artefact, writer in self._pairs:
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
            self.outcome = publish_item(task, self._source, self._digest, sidecar, self._written)
        self._close()
        return facts

    def fail(self, error: MediaError) -> None:
        """Give the item up."""
        self.outcome = failure_of(self._task, self._source, error)
        self._close()

    def _writer(self, number: int) -> ArtefactWriter:
        artefact = self._task.artefacts[number]
        return create_artefact(self._folder / f"{number}{TIERS[artefact.tier].suffix}", **artefact.options)

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
        source = self._source
        file = layout.artefact_file(
            artefact.tier, self._task.key, fingerprints, source.identity, source.ctime_ns, digest
        )
        stored = [info.replace(file=file, num_bytes=num_bytes, digest=digest) for _, info in present]
        if not feature_files.is_intact(self._task.cache, stored[0]):  # readers may have it open
            self._written[writer.path] = file
        return [*stored, *(info for _, info in infos if info.absent is not None)]

    def _info(self, tier: str, spec: FeatureSpec, facts: DecodeResult) -> FeatureInfo:
        state = self.made[spec.name]
        used = hash_of_fields(spec.uses, self._task.item)
        info = FeatureInfo(spec.name, tier, spec.fingerprint, spec.params, uses=spec.uses, used=used)
        if state.absent is not None:
            return info.replace(absent=state.absent)
        shape, dtype = state.shape, state.dtype
        if spec.name == "frames":  # shape and dtype as decoded, because a JPEG record has neither
            shape, dtype = (len(facts.pts_seconds), facts.height, facts.width, 3), "uint8"
        return info.replace(shape=shape, dtype=dtype, num_rows=state.num_rows, facts=state.facts)

    def _sidecar(self, facts: DecodeResult, made: Sequence[FeatureInfo], previous: Sidecar | None) -> Sidecar:
        """Return the sidecar of the item. ``previous`` is the existing one, if it is of the same frames."""
        task, item, kept = self._task, self._task.item, self._task.kept
        features = in_order((*made, *kept))
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
            damage=task.trimming.damage if task.trimming else None,
            display_width=facts.display_size[0],
            display_height=facts.display_size[1],
            display_crop=previous.display_crop if previous and frames in kept else facts.display_crop,
        ).described(item)
        return sidecar.replace(superseded=previous.with_features(features).superseded) if previous else sidecar


def failure_of(task: BuildTask, source: SourceState | None, error: MediaError) -> Failure:
    """Return the failure of an item.

    If the source changed during the decode, that change is the cause, not the error.
    """
    if source is not None:
        try:
            check_unchanged(task.source_path, source, task.inside, num_frames_ok=error.num_frames_ok)
        except MediaError as change:
            error = change
    row = f"row {task.row} of the index: " if error.cause == "segment" and task.row else ""
    return Failure(
        key=task.key,
        root=task.item.root,
        path=task.item.path,
        stage=error.stage,
        cause=error.cause,
        message=row + error.message,
        source=source.identity if source else None,
        num_frames_ok=error.num_frames_ok,
        attempts=task.attempt,
        fingerprints=tuple(spec.fingerprint for spec in _at_fault(task, error)),
    )


def _at_fault(task: BuildTask, error: MediaError) -> Iterator[FeatureSpec]:
    """Yield the features whose parameters have a part in an error: with others, the item may be built."""
    for name, spec in task.specs.items():
        if name == error.stage or error.cause == "features" or (error.cause == "bucket" and spec.buckets):
            yield spec


def publish_item(
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
        atomic.publish_all(task.cache, written)
        atomic.publish_text(task.cache, layout.sidecar_file(task.key), sidecar.to_line() + "\n")
    return sidecar


def _attributes(spec: FeatureSpec, info: FeatureInfo, array: str) -> dict[str, object]:
    """Return the attributes of an array in an HDF5 file."""
    part = array[len(spec.name) + 1 :]
    unit = {"units": spec.units[part]} if part in spec.units else {}
    return {**unit, "params": dict(info.params), "facts": dict(info.facts)}
