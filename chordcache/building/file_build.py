"""The build of the items of one file: one decode for all of them. It runs in a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from chordcache import progress
from chordcache.building.build_task import BuildTask, compared
from chordcache.building.existing_cache import writing_to
from chordcache.building.item_build import ItemBuild, failure_of, publish_item
from chordcache.errors import MediaError
from chordcache.features.feed import decode_segments, decode_whole
from chordcache.media.first_damage import damage_after
from chordcache.media.source_file import OpenSource, SourceState, hash_source, open_source
from chordcache.records import DamageFacts
from chordcache.storage import atomic, feature_files, layout
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar

Outcomes: TypeAlias = dict[str, Sidecar | Failure]
"""Key to the published sidecar, or the reason why there is none."""


def build_file(tasks: Sequence[BuildTask]) -> list[Sidecar | Failure]:
    """Decode the source of some items once, and publish the artefacts of each, then its sidecar.

    Returns the outcome of each task. The failure of one item does not end the others. Raises ``CacheWriteError`` if the
    disk of the cache fails, and ``UnreadableError`` if a folder or a file of the cache is a link.
    """
    with writing_to(tasks[0].cache):  # libav reads the sources, so errors are those of the cache's disk
        outcomes = _built(tasks)
    return [outcomes[task.key] for task in tasks]


def _built(tasks: Sequence[BuildTask]) -> Outcomes:
    """Open the source, and build what is missing."""
    source: OpenSource | None = None
    try:
        with open_source(tasks[0].source_path, tasks[0].inside, settled=True) as source:
            if tasks[0].hashing is not None:
                progress.expect(source.state.identity.size)
            digest = hash_source(source.place) if tasks[0].hashing is not None else None
            return _built_from(source, digest, tasks)
    except MediaError as error:
        return {task.key: failure_of(task, source.state if source else None, error) for task in tasks}


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
            outcomes[planned.key] = failure_of(planned, state, error)
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
        return publish_item(task, source, digest, task.described)
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
            try:
                outcome = _decoded_whole(task, source, digest)
            except MediaError as error:
                if not task.may_trim:
                    raise
                outcome = _decoded_whole(task, source, digest, damage_after(error, source.place))
        except MediaError as error:
            outcome = failure_of(task, source.state, error)
        outcomes |= {} if outcome is None else {task.key: outcome}
    return outcomes


def _decoded_whole(
    task: BuildTask, source: OpenSource, digest: str | None, damage: DamageFacts | None = None
) -> Sidecar | Failure | None:
    with ItemBuild(task, source.state, digest, damage) as item:
        decode_whole(source.place, item, damage)
        return item.outcome


def _decoded_parts(tasks: Sequence[BuildTask], source: OpenSource, digest: str | None) -> Outcomes:
    """Build items of which only their own frames are decoded."""
    failed: Outcomes = {}
    with ExitStack() as stack:
        items = {task.key: stack.enter_context(ItemBuild(task, source.state, digest)) for task in tasks}
        try:
            decode_segments(source.place, list(items.values()))
        except MediaError as error:
            failed = {task.key: failure_of(task, source.state, error) for task in tasks}
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
    return failure_of(task, source, error)


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
        return publish_item(task, source, digest, sidecar, written)
