"""The build of the items of one file: one decode for all of them, every extractor, every tier, publish.

It runs in a worker process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from chordcache import progress
from chordcache.building.build_plan import ArtefactTask
from chordcache.building.build_task import BuildTask
from chordcache.config.picture import Bucket
from chordcache.digests import digest_file
from chordcache.errors import DamageError, MediaError
from chordcache.features.decode_pass import DecodePass, DecodeResult
from chordcache.features.feed import decode_items
from chordcache.features.item_fields import hash_of_fields
from chordcache.features.registry import FeatureSpec
from chordcache.media.audio_track import Sound
from chordcache.media.demux import Media
from chordcache.media.source_file import OpenSource, SourceState, check_unchanged, open_source
from chordcache.storage import atomic, feature_files, layout
from chordcache.storage.artefacts.open_files import FRAME_ARRAYS
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.artefacts.writer import ArtefactWriter, create_artefact
from chordcache.storage.feature_info import FeatureInfo, StoredFile
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar, in_order

_CLOCK = ("num_frames", "start_seconds", "duration_seconds")
"""Facts that are equal if features are of the same frames of the same source"""


def build_file(tasks: Sequence[BuildTask]) -> list[Sidecar | Failure]:
    """Decode the source of some items once, and publish the artefacts of each, then its sidecar.

    Returns the outcome of each task. The failure of one item does not end the others. Raises ``StorageError`` if the
    disk of the cache fails, or a folder or a file of the cache is a link.
    """
    source: OpenSource | None = None
    with atomic.writing_to(tasks[0].cache):  # libav reads the sources, so errors are those of the cache's disk
        try:
            with open_source(tasks[0].source_path, tasks[0].inside, settled=True) as source, ExitStack() as stack:
                items = [stack.enter_context(closing(_ItemBuild(task, source.state))) for task in tasks]
                decode_items(source.place, [item for item in items if item.outcome is None])
                return [item.published() for item in items]
        except MediaError as error:
            return [_failure_of(task, source.state if source else None, error) for task in tasks]


def build_file_on(setting: str, device: str, tasks: Sequence[BuildTask]) -> list[Sidecar | Failure]:
    """Build as ``build_file``, with the networks of a device setting on one of its devices."""
    return build_file([task.on(setting, device) for task in tasks])


class _ItemBuild(DecodePass):
    """The decode of one item into a partial folder, which is published at its end.

    ``source`` is the state of the source before the decode. ``outcome`` is None until the item is published or has
    failed.
    """

    def __init__(self, task: BuildTask, source: SourceState) -> None:
        self._writers_of: dict[str, list[ArtefactWriter]] = {name: [] for name in task.specs}
        with_content = task.item.content is None
        item, segment = task.item, task.item.segment
        folder = task.source_path.removesuffix(item.path), task.inside
        super().__init__(
            task.specs, self._writers_of, task.picture, with_content=with_content, item=item, segment=segment,
            folder=folder,
        )  # fmt: skip
        self._task, self._source = task, source
        self._stack, self._writers = ExitStack(), ExitStack()
        self._pairs: list[tuple[ArtefactTask, ArtefactWriter]] = []
        self._written: dict[Path, str] = {}
        """Partial file to its final name, relative to the cache"""
        self.outcome: Sidecar | Failure | None = None
        if source.identity != task.item.identity and (task.kept or task.item.content is not None):
            what = "the file changed while it waited for its turn; run the same command"
            self.fail(MediaError("open", "changed", what))

    def close(self) -> None:
        """Remove the partial files."""
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
        """Take the remaining sound, and publish the item."""
        facts = super().finish(media, sounds, end_seconds)
        with progress.paused():
            infos = [info for artefact, writer in self._pairs for info in self._complete(artefact, writer, facts)]
        self._writers.close()
        self.outcome = _publish_item(self._task, self._source, self._sidecar(facts, infos), self._written)
        self.close()
        return facts

    def fail(self, error: MediaError) -> None:
        """Mark the item as failed, unless it is published."""
        self.outcome = self.outcome or _failure_of(self._task, self._source, error)
        self.close()

    def published(self) -> Sidecar | Failure:
        """Return the outcome after the decode."""
        assert self.outcome is not None, "an item ends with its last frame"
        return self.outcome

    def _complete(self, artefact: ArtefactTask, writer: ArtefactWriter, facts: DecodeResult) -> list[FeatureInfo]:
        """Complete one file. Return its features, and those that the video does not have."""
        infos = [(spec, self._info(artefact.tier, spec, facts)) for spec in artefact.features]
        present = [(spec, info) for spec, info in infos if info.absent is None]
        if not present:
            return [info for _, info in infos]
        attributes: dict[str, dict[str, object]] = {}
        for spec, info in present:
            for array in info.num_rows:
                part = array[len(spec.name) + 1 :]
                unit = {"units": spec.units[part]} if part in spec.units else {}
                attributes[array] = {**unit, "params": dict(info.params), "facts": dict(info.facts)}
        writer.finish(
            {name: getattr(facts, name) for name in FRAME_ARRAYS},
            attributes,
        )
        num_bytes, digest = writer.path.stat().st_size, digest_file(writer.path)
        fingerprints = {spec.name: spec.fingerprint for spec, _ in present}
        source = self._source.identity, self._source.ctime_ns
        file = layout.artefact_file(artefact.tier, self._task.key, fingerprints, *source, digest)
        stored = StoredFile(file, num_bytes, digest)
        if not feature_files.is_intact(self._task.cache, stored):  # readers may have it open
            self._written[writer.path] = file
        return [info if info.absent is not None else info.replace(file=stored) for _, info in infos]

    def _info(self, tier: str, spec: FeatureSpec, facts: DecodeResult) -> FeatureInfo:
        state = self.results[spec.name]
        used = hash_of_fields(spec.uses, self._task.item)
        info = FeatureInfo(spec.name, tier, spec.fingerprint, spec.params, used=used)
        if state.absent is not None:
            return info.replace(absent=state.absent)
        shape, dtype = state.shape, state.dtype
        if spec.name == "frames":  # shape and dtype as decoded, because a JPEG record has neither
            shape, dtype = (len(facts.pts_seconds), facts.height, facts.width, 3), "uint8"
        return info.replace(shape=shape, dtype=dtype, num_rows=state.num_rows, facts=state.facts)

    def _sidecar(self, facts: DecodeResult, infos: Sequence[FeatureInfo]) -> Sidecar:
        """Return the sidecar of the item. Raise ``MediaError`` if its features that stay are of other frames."""
        task, item, kept, previous = self._task, self._task.item, self._task.kept, self._task.previous
        features = in_order((*infos, *kept))
        frames = next((info for info in features if info.feature == "frames"), None)
        height, width = frames.shape[1:3] if frames else (facts.height, facts.width)
        pts_seconds = facts.pts_seconds
        sidecar = Sidecar(
            key=task.key,
            root=item.root,
            path=item.path,
            source=self._source.identity,
            picture=task.picture.fingerprint,
            num_frames=len(pts_seconds),
            width=width,
            height=height,
            start_seconds=float(pts_seconds[0]),
            duration_seconds=float(np.max(pts_seconds) - np.min(pts_seconds)) + facts.frame_seconds,
            timestamp_source=facts.timestamp_source,
            num_frames_skipped=facts.num_frames_skipped,
            features=features,
            about=item.description(),
            notes=tuple(dict.fromkeys((*(previous.notes if kept and previous else ()), *facts.notes))),
            content=item.content or facts.content,
            display_size=facts.display_size,
            display_crop=facts.display_crop,
        )
        if kept and previous and any(getattr(previous, name) != getattr(sidecar, name) for name in _CLOCK):
            what = f"got {sidecar.num_frames} frames in {sidecar.duration_seconds:.3f} s, expected "
            what += f"{previous.num_frames} in {previous.duration_seconds:.3f} s as in the features that are cached"
            raise MediaError("publish", "frames", what, sidecar.num_frames)
        return sidecar


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
            if name == error.stage
            or error.cause in ("features", "refused-size", "stereo")
            or (error.cause == "bucket" and spec.buckets)
        ),
    )


def _publish_item(task: BuildTask, source: SourceState, sidecar: Sidecar, written: Mapping[Path, str]) -> Sidecar:
    """Publish artefacts (partial file to final name), then the sidecar, if the source is still the decoded one."""
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
