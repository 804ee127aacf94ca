"""The artefacts that this process has open.

Opening an artefact takes longer than reading a clip of it, so a process keeps those that it opened last. Threads and
forked processes share flat files, which are read by position. HDF5 does not survive a fork with open files, so its
files are closed before a fork.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from chordcache.errors import DamageError, printable
from chordcache.storage.artefacts.artefact import Artefact, Ranges
from chordcache.storage.artefacts.claims import Claims
from chordcache.storage.artefacts.tiers import tier_of
from chordcache.storage.artefacts.writer import ArtefactWriter
from chordcache.storage.feature_info import Packed
from chordcache.storage.layout import pack_file

FRAME_ARRAYS = ("pts_seconds", "source_frames", "keyframes")
"""Whole arrays about the frames of a video, which each of its artefacts has."""

_MAX_OPEN = 128
"""Number of artefacts that a process keeps open. They are opened once although a loader fetches 64 clips ahead."""

_FORK_PATIENCE_SECONDS = 5
"""Time that a fork waits for readers of HDF5 in other threads [seconds]. A clip takes milliseconds."""

_CHECK_RECORDS = 1000
"""Number of records that are checked at once."""

_CHECK_BYTES = 16 << 20
"""Size of the rows that are checked at once [bytes]."""


def create_artefact(path: Path, **options: Any) -> ArtefactWriter:
    """Begin an artefact in the tier that the suffix names, ``.lmdb``, ``.npz`` or ``.h5``, in a folder of its own.

    The options are keyword arguments of the tier's writer. Raises ``UsageError`` if no such tier or option exists, and
    ``NoSpaceError`` or ``CacheWriteError`` if the disk cannot take the file.
    """
    writer: ArtefactWriter = resolve_name(tier_of(path).writer)(path, **options)
    return writer


def _open(path: Path, *details: Any) -> Artefact:
    artefact: Artefact = resolve_name(tier_of(path).artefact)(path, *details)
    return artefact


_kept: OrderedDict[tuple[Path, Packed | None], tuple[tuple[int, int] | None, Artefact]] = OrderedDict()
"""Artefacts by path and place, each with its inode, the one opened first at the front. A lock is not used, since a fork
could copy one that another thread holds: each call is atomic. The last user of an artefact closes it."""


def _kept_artefact(
    path: Path, num_bytes: int, claims: Claims | None, packed: Packed | None, ranges: Ranges | None = None
) -> Artefact:
    # The inode is read before the file is opened: if the file is replaced meanwhile, the next user sees it
    inode = _inode_of(path if packed is None else path.parents[2] / pack_file(packed.pack))
    known, artefact = _kept.get((path, packed), (None, None))
    if artefact is None or known != inode:
        artefact = _open(path, num_bytes, claims, packed, ranges)
        _kept[path, packed] = inode, artefact
    with suppress(KeyError):  # another thread may have removed it
        _kept.move_to_end((path, packed))
        while len(_kept) > _MAX_OPEN:
            _kept.popitem(last=False)
    return artefact


def _inode_of(path: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a file, or None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Hdf5Users:
    """The readers of HDF5 in this process. A fork waits for them, and new ones wait for the fork."""

    def __init__(self) -> None:
        self._leaked: list[object] = []
        self._reset()

    def _reset(self) -> None:
        self._in_use: list[Artefact] = []
        self._changed = threading.Condition()
        self._is_forking = False

    @contextmanager
    def add(self, open_: Callable[[], Artefact]) -> Iterator[Artefact]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_forking)
            artefact = open_()
            self._in_use.append(artefact)
        try:
            yield artefact
        finally:
            with self._changed:
                self._in_use.remove(artefact)
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Let no new reader in, wait for the current readers, close everything."""
        with self._changed:
            self._is_forking = True
            self._changed.wait_for(lambda: not self._in_use, timeout=_FORK_PATIENCE_SECONDS)
            for place in list(_kept):  # other threads may add and remove flat files meanwhile
                if not tier_of(place[0]).is_flat:
                    _, artefact = _kept.pop(place, (None, None))
                    if artefact is not None and artefact not in self._in_use:
                        artefact.close()

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._is_forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        # These belong to threads that the child does not have, so the child must not close them
        self._leaked.append(self._in_use)
        self._reset()


_hdf5_users = _Hdf5Users()


def guard_forks() -> None:
    """Register the hook that closes files of HDF5 before a fork. It runs before the hooks registered so far.

    h5py takes its own lock before a fork, and a reader that waits for that lock would never release its file. So the
    HDF5 store calls this function after it has loaded h5py.
    """
    os.register_at_fork(
        before=_hdf5_users.before_fork,
        after_in_parent=_hdf5_users.after_fork_in_parent,
        after_in_child=_hdf5_users.after_fork_in_child,
    )


@contextmanager
def open_artefact(
    path: Path,
    num_bytes: int,
    claims: Claims | None = None,
    packed: Packed | None = None,
    ranges: Ranges | None = None,
) -> Iterator[Artefact]:
    """Open an artefact, or return it if this process has it open. Do not fork while one of HDF5 is in use.

    The parameters are those of ``Artefact``. The suffix of the path names the store. Raises ``UsageError`` if it
    belongs to no tier, and as ``Artefact`` does.
    """
    if tier_of(path).is_flat:
        yield _kept_artefact(path, num_bytes, claims, packed, ranges)
    else:
        with _hdf5_users.add(lambda: _kept_artefact(path, num_bytes, claims, packed)) as artefact:
            yield artefact


def forget(path: Path) -> None:
    """Close an artefact as soon as it is not in use."""
    for name, packed in list(_kept):
        if name == path:
            _kept.pop((name, packed), None)


def check_artefact(
    path: Path,
    num_bytes: int,
    num_rows: Mapping[str, int],
    *,
    claims: Claims | None = None,
    packed: Packed | None = None,
    whole: Collection[str] = FRAME_ARRAYS,
    look: Callable[[str, int, Any], None] | None = None,
) -> None:
    """Check every row and array of an artefact, and that the file holds nothing else. Memory is bounded.

    ``num_rows`` has the number of rows of every streamed array, and ``whole`` the names of all whole arrays, without
    the arrays of digests. ``look`` is called for each row or record that passes the check, with the name of the
    streamed array, the number, and the row or record, whose memory is valid until the call returns. Raises
    ``DamageError`` at the first row, record or array that changed, or if an array is missing, unexpected, or of another
    length.
    """
    with open_artefact(path, num_bytes, claims, packed) as artefact:
        _check_names(artefact, num_rows, whole)
        for name in num_rows:
            done = 0
            while done < num_rows[name]:
                done = _check_span(artefact, name, done, look)
    forget(path)


def _check_names(artefact: Artefact, num_rows: Mapping[str, int], whole: Collection[str]) -> None:
    shapes = {name: f"{artefact.num_rows(name)} rows" for name in artefact.streamed}
    shapes |= dict.fromkeys(artefact.whole, "a whole array")
    wanted = {name: f"{count} rows" for name, count in num_rows.items()} | dict.fromkeys(whole, "a whole array")
    for name in sorted({*shapes, *wanted}):
        if shapes.get(name) != wanted.get(name):
            have, want = shapes.get(name, "nothing"), wanted.get(name, "nothing")
            what = f"got {have} of '{printable(name)}', expected {want}"
            raise DamageError(f"'{printable(artefact.path)}' is damaged: {what}")
    for name in whole:
        artefact.array(name)


def _check_span(artefact: Artefact, name: str, start: int, look: Callable[[str, int, Any], None] | None) -> int:
    """Check some rows from ``start`` on. Return the number of the next row."""
    layout = artefact.layout(name)
    if layout.dtype is None:
        span = range(start, min(start + _CHECK_RECORDS, layout.num_rows))
        values: Any = artefact.records(name, span)
    else:
        num_rows = max(1, _CHECK_BYTES // max(1, layout.row_bytes))
        span = range(start, min(start + num_rows, layout.num_rows))
        values = artefact.rows(name, span)
    for number, value in zip(span, values, strict=True):
        if look is not None:
            look(name, number, value)
    return span.stop
