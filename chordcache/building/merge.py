"""``merge``: joins caches into a new one, without decoding. Artefacts are hard links where the disk allows it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from chordcache.amounts import counted
from chordcache.arguments import names_arguments
from chordcache.building.existing_cache import (
    check_sidecars,
    index_of,
    settings_of,
    unnamed_files,
)
from chordcache.building.fix_commands import build_command, repairable
from chordcache.building.join_parts import (
    check_parts,
    join_runs,
    joined_before,
    left_to_join,
    order_index,
    remove_parts,
    shared_settings,
)
from chordcache.building.pack import copy_video
from chordcache.choices import SCAN_LEVELS
from chordcache.digests import digest_file
from chordcache.engine import terminal
from chordcache.engine.signals import stop_signals
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.index.column_types import check_values, merged_columns
from chordcache.records import RunSummary
from chordcache.storage import atomic, layout, opener
from chordcache.storage.cache_header import Header, read_header, write_header
from chordcache.storage.feature_files import FeatureFiles
from chordcache.storage.find_sidecars import Sidecars, write_catalog
from chordcache.storage.lock import locked, locked_for_reading
from chordcache.storage.quarantine import Failure, Quarantine, write_failures
from chordcache.storage.run_log import recorded
from chordcache.storage.sidecar import Sidecar


@names_arguments
def merge(
    caches: Sequence[str | Path], output: str | Path, *, move: bool = False, progress: bool = False
) -> RunSummary:
    """Join caches into a new one, without decoding.

    Artefacts of the new cache are hard links to those of the old ones, or copies if a disk does not allow that. Hard
    links are safe, because chordcache never changes an artefact in place: ``build`` and ``repair`` write a new file and
    rename it, and ``collect_garbage`` removes a name and not the data. So each cache can be built on, repaired or
    removed without an effect on the others. A linked file is on the disk only once, so damage by the disk hits both.

    The merge locks all the caches. Run it again with the same arguments after a kill. Until it is complete, the new
    cache has no header, so nothing opens it.

    Parameters
    ----------
    caches : sequence of str or Path
        Two or more caches with the same config, the same features in the same tiers, and the same options
        ``follow_symlinks``. They are only read. If several have the same video, its sidecars must
        be equal.
    output : str or Path
        Folder of the new cache: one that does not exist, is empty, or was left by a merge of the same caches.
    move : bool
        True to join all parts of a build, which ``BuildOptions.part`` made, in the order of the whole index, and to
        remove the parts at the end. The same call completes a join that was killed.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    RunSummary
        Counts of the merge. ``num_up_to_date`` counts the videos that an earlier run merged, ``num_failed`` the inputs
        in quarantine.

    Raises
    ------
    UsageError
        If the caches do not fit together or are not built to their end, or ``output`` holds something else. Nothing was
        written then.
    NotFoundError
        If one of the folders is not a cache of this format.
    DamageError
        If a cache is damaged or not copied to its end. Repair it, then call again.
    LockedError
        If another process writes to one of the caches, or to ``output``.
    StorageError, StoppedError
        If a cache cannot be read, the disk takes no data, or a signal stopped it. The same call resumes.
    """
    folders = [layout.cache_folder(cache, "caches") for cache in caches]
    folder = layout.cache_folder(output, "output")
    if len(folders) < 2 and not move:
        raise UsageError(f"caches: got {len(folders)}, expected at least 2. Name the caches to join.")
    if any(os.path.realpath(source) == os.path.realpath(folder) for source in folders):
        raise UsageError(f"output: got '{printable(output)}', which is one of the caches. Name a new folder.")
    folders = left_to_join(folders, folder) if move else folders
    for source in folders:
        read_header(source)  # raises before a lock is looked for in a folder that is not a cache
    with stop_signals(resumes=True), ExitStack() as stack:
        for source in dict.fromkeys(folders):
            stack.enter_context(locked(source) if move else locked_for_reading(source))
        if move and (summary := joined_before(folders, folder)) is not None:
            remove_parts(folders)
            return summary
        merged = _Merge(folders, moves=move)
        _check_folder(folder)
        stack.enter_context(locked(folder))
        with recorded(folder, "merge") as notes, atomic.writing_to(folder):
            summary = merged.run(folder, progress)
            notes.take(summary)
            notes.exit_code = 0
        if move:
            remove_parts(merged.folders)
        return summary


def _check_folder(folder: Path) -> None:
    """Raise ``UsageError`` if the output holds files that no merge writes."""
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise UsageError(f"output: got '{printable(folder)}', expected a folder. Name another one.")
    _, foreign = unnamed_files(folder)
    if foreign:
        raise _other_output(folder, f"which holds '{printable(foreign[0])}'")


def _other_output(folder: Path, what: str) -> UsageError:
    return UsageError(
        f"output: got '{printable(folder)}', {what}, expected an empty folder or an interrupted merge of these caches. "
        "Name another folder."
    )


class _Merge:
    """A merge under the locks of all caches. Raises ``UsageError`` if they do not fit together."""

    def __init__(self, folders: Sequence[Path], *, moves: bool) -> None:
        self.folders, self._moves = list(dict.fromkeys(folders)), moves
        self._headers = headers = {folder: read_header(folder).writable(folder) for folder in self.folders}
        _check_alike(headers, shared_settings if moves else settings_of)
        if moves:
            check_parts(headers)
        first = headers[self.folders[0]]
        columns: dict[str, str] = {}
        for header in headers.values():
            columns = merged_columns(columns, header.columns)
        digests = (first.part.index, "") if moves and first.part else first.index_digests
        roots = _joined_roots(headers)
        self._header = first.replace(roots=roots, columns=columns, index_digests=digests, part=None)
        self._indices = [index_of(folder) for folder in self.folders]
        self._owners: dict[str, Path] = {}
        """Key of each cached video to the first cache that has it"""
        self._sidecars: dict[Path, Sidecars] = {}
        for folder in self.folders:
            check_sidecars(folder)
            self._sidecars[folder] = Sidecars(folder)
            for key in self._sidecars[folder].sorted_keys():
                owner = self._owners.setdefault(key, folder)
                if owner != folder:
                    self._check_equal(key, owner, folder)
        self._failures = self._quarantined()
        """Quarantined inputs, by key"""
        self._keys = {*self._owners, *self._failures}
        """Keys of all inputs"""
        self._check_complete()

    def _check_complete(self) -> None:
        """Raise ``UsageError`` if a video is asked for that none of the caches has, or has in quarantine."""
        for folder, index in zip(self.folders, self._indices, strict=True):
            lacking = []
            with repairable(folder):
                for record in index:
                    key = layout.key_of(record)
                    self._keys.add(key)
                    if key not in self._owners and key not in self._failures:
                        lacking.append(record.path)
            if lacking:
                command = build_command(folder, read_header(folder).features)
                raise UsageError(
                    f"caches: got '{printable(folder)}', which lacks {len(lacking)} of "
                    f"{counted(len(index), 'indexed video')}, such as '{printable(lacking[0])}', expected complete "
                    f"caches. Run '{command}'."
                )

    def _check_equal(self, key: str, owner: Path, folder: Path) -> None:
        """Raise ``UsageError`` if two caches have another video, or other features of it."""
        sidecar, other = self._sidecar(key, self._owners[key]), self._sidecar(key, folder)
        if sidecar == other:
            return
        names, others = ({f"{info.feature} in {info.tier}" for info in one.features} for one in (sidecar, other))
        for place, lacking in ((owner, others - names), (folder, names - others)):
            if lacking:
                command = build_command(place, read_header(place).features)
                raise UsageError(
                    f"caches: got '{printable(place)}' without {', '.join(sorted(lacking))} of video '{key}', expected "
                    f"the features that the other cache has of it. Run '{command}'."
                )
        raise UsageError(
            f"caches: got two versions of video '{key}' in '{printable(owner)}' and in '{printable(folder)}', expected "
            "equal ones. Build both caches from the same file and the same labels."
        )

    def _sidecar(self, key: str, folder: Path) -> Sidecar:
        """Return the sidecar of a video in a cache."""
        with repairable(folder):
            return self._sidecars[folder].read(key)

    def _write_index(self, path: Path) -> None:
        """Write the records of all caches, one for each video."""
        levels = [index.level for index in self._indices]
        level = None if None in levels else min(map(str, levels), key=SCAN_LEVELS.index)
        seen: set[str] = set()
        changes = {"roots": self._header.roots, "level": level, "columns": self._header.columns}
        with self._indices[0].writer(path, **changes) as writer:
            for folder, index in zip(self.folders, self._indices, strict=True):
                with repairable(folder):
                    for record in index:
                        key = layout.key_of(record)
                        if key not in seen and self._owners.get(key, folder) == folder:
                            seen.add(key)
                            check_values(record.path, record.extra, self._header.columns)
                            writer.write(record)
        if self._moves:
            order_index(path, self._headers.values())

    def _quarantined(self) -> dict[str, Failure]:
        """Return the quarantined inputs by key, without those of videos that another cache has."""
        failures: dict[str, Failure] = {}
        for folder in self.folders:
            with repairable(folder):
                for failure in Quarantine(folder, {}):
                    if self._owners.get(failure.key, folder) == folder:
                        failures.setdefault(failure.key, failure)
        return failures

    def run(self, output: Path, progress: bool) -> RunSummary:
        """Merge what is missing. The header comes last, so that an incomplete cache cannot be opened."""
        started = time.monotonic()
        written, num_done, num_frames = Sidecars(output), 0, 0
        atomic.remove_partials(output)
        with atomic.partial_folder(output) as folder:
            index = folder / "index.jsonl"
            self._write_index(index)
            is_complete = self._check_output(output, written, index)
            files = FeatureFiles(output)
            earlier = ((key, written.read_or_none(key)) for key in self._owners)
            new = [key for key, sidecar in earlier if sidecar is None or not all(map(files.has, sidecar.files))]
            atomic.check_space(output, self._num_bytes_to_copy(new, output))
            with terminal.progress_bar(len(new), "video", shown=progress) as bar:
                for key in new:
                    atomic.check_space(output)  # another program may fill the disk
                    sidecar = self._sidecar(key, self._owners[key])
                    copy_video(self._owners[key], output, sidecar, trusts_links=self._moves)
                    num_frames += sidecar.num_frames
                    # A video of which only some features are cached counts as failed
                    num_done += key not in self._failures
                    bar.update()
            if not is_complete:
                atomic.publish(index, output / index.name)
        if not is_complete:
            if self._failures:
                write_failures(output, self._failures.values())
            write_catalog(output)
            if self._moves:
                join_runs(self.folders, output)
            write_header(output, self._header)
        return RunSummary(
            num_inputs=len(self._keys),
            num_done=num_done,
            num_up_to_date=len(self._owners.keys() - self._failures.keys()) - num_done,
            num_failed=len(self._failures),
            num_frames=num_frames,
            elapsed_seconds=time.monotonic() - started,
        )

    def _num_bytes_to_copy(self, keys: Iterable[str], output: Path) -> int:
        """Return the size of those files of videos to which no link can be made [bytes]."""
        disk = os.stat(output).st_dev
        linkable = {folder for folder in self.folders if os.stat(folder).st_dev == disk}
        owners = ((key, self._owners[key]) for key in keys)
        return sum(self._sidecar(key, owner).num_bytes() for key, owner in owners if owner not in linkable)

    def _check_output(self, output: Path, written: Sidecars, index: Path) -> bool:
        """Return whether the output is the complete merge.

        Raises ``UsageError`` if it holds another index, header or video than those of this merge.
        """
        path = output / index.name
        if opener.exists(output, path.name) and digest_file(opener.open_file(output, path.name)) != digest_file(index):
            raise _other_output(output, f"which holds another '{path.name}'")
        for key in written.sorted_keys():
            earlier = written.read_or_none(key)
            if key not in self._owners or (earlier and earlier != self._sidecar(key, self._owners[key])):
                raise _other_output(output, f"which holds another video '{key}'")
        try:
            if read_header(output) == self._header:
                return True
        except (NotFoundError, DamageError):
            return False
        raise _other_output(output, "which holds another cache")


def _check_alike(headers: Mapping[Path, Header], settings_of: Callable[[Header], dict[str, str]]) -> None:
    """Raise ``UsageError`` with the list of differences, unless all caches are made in the same way."""
    (first, settings), *others = ((folder, settings_of(header)) for folder, header in headers.items())
    differing = [
        f"{name}: got {settings.get(name, 'nothing')} in '{printable(first)}' and {other.get(name, 'nothing')} in "
        f"'{printable(folder)}'"
        for folder, other in others
        for name in sorted(settings.keys() | other.keys())
        if settings.get(name) != other.get(name)
    ]
    if differing:
        what = f"caches: got {counted(len(differing), 'difference')}, expected equal settings"
        raise UsageError(f"{what}. Build the caches with the same config, tiers and options. {'; '.join(differing)}")


def _joined_roots(headers: Mapping[Path, Header]) -> dict[str, str]:
    """Return the roots of all caches. One label must not name two folders: it would mix up videos."""
    joined: dict[str, tuple[str, Path]] = {}
    for folder, header in headers.items():
        for label, path in header.roots.items():
            other, cache = joined.setdefault(label, (path, folder))
            if other != path:
                raise UsageError(
                    f"caches: got root '{printable(label)}' at '{printable(other)}' in '{printable(cache)}' and at "
                    f"'{printable(path)}' in '{printable(folder)}', expected one folder for each label. If the folder "
                    f"moved, build one of the caches again with --root {printable(label)}=PATH. If these are two "
                    "folders, scan one of them with another NAME=PATH and build it again."
                )
    return {label: path for label, (path, _) in joined.items()}
