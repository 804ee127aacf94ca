"""The build of the items of one file: one decode for all of them. It runs in a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from chordcache.errors import CacheWriteError, MediaError
from chordcache.features.feed import decode_segments, decode_whole
from chordcache.media.source_file import SourceState, bytes_changed, hash_source, look_settled
from chordcache.pipeline.build_task import BuildTask
from chordcache.pipeline.item_build import ItemBuild, failure_of, publish_item
from chordcache.pipeline.trim import damage_after
from chordcache.storage import atomic, layout
from chordcache.storage.quarantine import Failure
from chordcache.storage.sidecar import Sidecar


def build_file(tasks: Sequence[BuildTask]) -> list[Sidecar | Failure]:
    """Decode the source of some items once, and publish the artefacts of each, then its sidecar.

    Returns
    -------
    list of Sidecar or Failure
        The outcome of each task. The failure of one item does not end the others.

    Raises
    ------
    CacheWriteError
        If the disk of the cache fails.
    """
    try:
        return _Build(tasks).run()
    except CacheWriteError:
        raise
    except OSError as error:  # libav reads the sources, so this is an error of the cache's disk
        raise CacheWriteError(
            f"cannot write to cache '{tasks[0].cache}': {error.strerror} ('{error.filename}'); run the same command"
        ) from None


class _Build:
    """The build of the items of one file."""

    def __init__(self, tasks: Sequence[BuildTask]) -> None:
        self._tasks = tasks
        self._outcomes: dict[str, Sidecar | Failure] = {}

    def run(self) -> list[Sidecar | Failure]:
        """Build what is missing. Items that only need other names or another label take no decode."""
        first = self._tasks[0]
        source: SourceState | None = None
        try:
            source = look_settled(first.source_path, first.inside)
            digest = hash_source(first.source_path) if first.with_hash else None
        except MediaError as error:
            return [failure_of(task, source, error) for task in self._tasks]
        remaining = [task for each in self._tasks if (task := self._prepared(each, source, digest)) is not None]
        parts = [task for task in remaining if task.takes_part]
        for group in (parts, *([task] for task in remaining if not task.takes_part)):
            again = [task for task in self._decode(group, source, digest) if self._can_make_all(task, source)]
            self._decode([replace(task, artefacts=task.all_artefacts, kept=()) for task in again], source, digest)
        return [self._outcomes[task.key] for task in self._tasks]

    def _prepared(self, task: BuildTask, source: SourceState, digest: str | None) -> BuildTask | None:
        """Return the task for the bytes that the source has now, or None if it needs no decode."""
        try:
            if source.identity != task.source and (task.previous is not None or task.content is not None):
                raise MediaError(
                    "open", "changed", "the file changed while it waited for its turn; run the same command"
                )
            task = _compared(task, source, digest)
            if task.previous is not None and not task.artefacts:
                sidecar = described(task, task.previous)
                self._outcomes[task.key] = publish_item(task, source, digest, sidecar)
                return None
            for twin in task.twins:
                if twin.source_hash == digest:
                    self._outcomes[task.key] = _relinked(task, source, digest, twin)
                    return None
        except MediaError as error:
            self._outcomes[task.key] = failure_of(task, source, error)
            return None
        return task

    def _decode(self, tasks: Sequence[BuildTask], source: SourceState, digest: str | None) -> list[BuildTask]:
        """Build some items: segments, or the whole file. Return those whose features must all be made again."""
        if not tasks:
            return []
        path, first = tasks[0].source_path, tasks[0]
        try:
            if first.takes_part:
                self._decode_segments(tasks, source, digest)
            else:
                try:
                    self._decode_whole(first, source, digest)
                except MediaError as error:
                    damage = damage_after(error, path, first.on_damage)
                    tasks = [replace(first, damage=damage)]
                    self._decode_whole(tasks[0], source, digest)
        except MediaError as error:
            missing = (task for task in tasks if task.key not in self._outcomes)
            self._outcomes |= {task.key: failure_of(task, source, error) for task in missing}
        return [task for task in tasks if task.key not in self._outcomes]

    def _can_make_all(self, task: BuildTask, source: SourceState) -> bool:
        """Return whether all features of an item whose frames are others can be made, so that none is lost."""
        made = {(artefact.tier, name) for artefact in task.all_artefacts for name in artefact.names}
        lost = [info.feature for info in task.kept if (info.tier, info.feature) not in made]
        if lost:
            names = ", ".join(dict.fromkeys(lost))
            what = f"its frames are others now, and {names} cannot be made of them here"
            error = MediaError("publish", "features", f"{what}. Install what it needs, or build with --drop {lost[0]}.")
            self._outcomes[task.key] = failure_of(task, source, error)
        return not lost

    def _decode_segments(self, tasks: Sequence[BuildTask], source: SourceState, digest: str | None) -> None:
        """Build items of which only their own frames are decoded."""
        with ExitStack() as stack:
            items = {task.key: stack.enter_context(ItemBuild(task, source, digest)) for task in tasks}
            try:
                decode_segments(tasks[0].source_path, list(items.values()))
            finally:
                self._outcomes |= {key: item.outcome for key, item in items.items() if item.outcome is not None}

    def _decode_whole(self, task: BuildTask, source: SourceState, digest: str | None) -> None:
        """Build a file."""
        with ItemBuild(task, source, digest) as item:
            decode_whole(task.source_path, item, task.damage)
            if item.outcome is not None:
                self._outcomes[task.key] = item.outcome


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
            key=task.key,
            root=task.root,
            path=task.path,
            source=source.identity,
            features=tuple(features),
            superseded=(),
        ).described(task.description)
        return publish_item(task, source, digest, sidecar, written)


def described(task: BuildTask, sidecar: Sidecar) -> Sidecar:
    """Return a copy of a sidecar with the features that stay, and the label, caption and extra columns of the index."""
    return sidecar.with_features(task.kept).described(task.description)
