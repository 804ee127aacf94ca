"""The artefacts that this process has open.

Opening an artefact takes longer than reading a clip of it, so a process keeps some of them open. HDF5 does not survive
a fork with open files, so that the registry is emptied before a fork.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from chordcache.errors import DamageError, printable
from chordcache.storage.artefacts.artefact import Artefact, Claims, row_bytes
from chordcache.storage.artefacts.tiers import load, tier_of
from chordcache.storage.artefacts.writer import ArtefactWriter

FRAME_ARRAYS = ("pts_seconds", "source_frames", "keyframes")
"""Whole arrays about the frames of a video, which each of its artefacts has."""

_MAX_OPEN = 64
"""Number of artefacts that a process keeps open."""

_FORK_PATIENCE_SECONDS = 5
"""Time that a fork waits for readers in other threads [seconds]. A clip takes milliseconds."""

_CHECK_RECORDS = 1000
"""Number of records that are checked at once."""

_CHECK_BYTES = 16 << 20
"""Size of the rows that are checked at once [bytes]."""


def create_artefact(path: Path, **options: Any) -> ArtefactWriter:
    """Begin an artefact in the tier that the suffix names.

    Parameters
    ----------
    path : Path
        ``.lmdb``, ``.npz`` or ``.h5``, in a folder of its own.
    **options
        Keyword arguments of the tier's writer.

    Raises
    ------
    UsageError
        If no such tier or option exists.
    NoSpaceError, CacheWriteError
        If the disk cannot take the file.
    """
    writer: ArtefactWriter = load(tier_of(path).writer)(path, **options)
    return writer


def _open(path: Path, num_bytes: int, claims: Claims | None) -> Artefact:
    artefact: Artefact = load(tier_of(path).artefact)(path, num_bytes, claims)
    return artefact


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclass(eq=False)
class _Entry:
    artefact: Artefact
    inode: tuple[int, int] | None
    num_users: int = 0


class _Registry:
    """The open artefacts of this process, least recently used first."""

    def __init__(self) -> None:
        self._leaked: list[object] = []
        self._reset()

    def _reset(self) -> None:
        self._open: OrderedDict[Path, _Entry] = OrderedDict()
        self._replaced: list[_Entry] = []  # still in use, although another file has their name now
        self._changed = threading.Condition()
        self._is_forking = False

    def acquire(self, path: Path, num_bytes: int, claims: Claims | None) -> _Entry:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_forking)
            entry = self._open.get(path)
            if entry is not None and entry.inode != _inode(path):
                self._retire(path)
                entry = None
            if entry is None:
                inode = _inode(path)  # before the open: if the file is replaced meanwhile, the next user sees it
                entry = self._open[path] = _Entry(_open(path, num_bytes, claims), inode)
            self._open.move_to_end(path)
            entry.num_users += 1
            self._close_idle(len(self._open) - _MAX_OPEN)
            return entry

    def release(self, entry: _Entry) -> None:
        with self._changed:
            entry.num_users -= 1
            if not entry.num_users and entry in self._replaced:
                self._replaced.remove(entry)
                entry.artefact.close()
            self._changed.notify_all()

    def forget(self, path: Path) -> None:
        with self._changed:
            entry = self._open.get(path)
            if entry is not None and not entry.num_users:
                self._retire(path)

    def _retire(self, path: Path) -> None:
        entry = self._open.pop(path)
        if entry.num_users:
            self._replaced.append(entry)
        else:
            entry.artefact.close()

    def _close_idle(self, at_most: int) -> None:
        idle = (path for path, entry in self._open.items() if not entry.num_users)
        for path in list(islice(idle, max(0, at_most))):
            self._retire(path)

    def before_fork(self) -> None:
        """Let no new reader in, wait for the current readers, close everything."""
        with self._changed:
            self._is_forking = True
            self._changed.wait_for(
                lambda: not self._replaced and not any(entry.num_users for entry in self._open.values()),
                timeout=_FORK_PATIENCE_SECONDS,
            )
            self._close_idle(len(self._open))

    def after_fork_in_parent(self) -> None:
        with self._changed:
            self._is_forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        # These belong to threads that the child does not have, so the child must not close them
        self._leaked += [self._open, self._replaced]
        self._reset()


_registry = _Registry()


def guard_forks() -> None:
    """Register the hook that empties the registry before a fork, so that it runs before the hooks registered so far.

    h5py takes its own lock before a fork, and a reader that waits for that lock would never release its artefact. So
    the HDF5 store calls this function again after it has loaded h5py. Emptying the registry twice does no harm.
    """
    os.register_at_fork(
        before=_registry.before_fork,
        after_in_parent=_registry.after_fork_in_parent,
        after_in_child=_registry.after_fork_in_child,
    )


guard_forks()


@contextmanager
def open_artefact(path: Path, num_bytes: int, claims: Claims | None = None) -> Iterator[Artefact]:
    """Open an artefact, or return it if this process has it open.

    Do not fork while an artefact is in use. The child of a fork opens its own.

    Parameters
    ----------
    path : Path
        A published artefact. Its suffix names the store.
    num_bytes : int
        Its size according to the sidecar [bytes].
    claims : Claims, optional
        The other statements of the sidecar, see ``Artefact``.

    Raises
    ------
    UsageError
        If the suffix belongs to no tier.
    DamageError
        If the file is missing, has another size or is not such an artefact.
    """
    entry = _registry.acquire(path, num_bytes, claims)
    try:
        yield entry.artefact
    finally:
        _registry.release(entry)


def forget(path: Path) -> None:
    """Close an artefact, unless it is in use."""
    _registry.forget(path)


def check_artefact(
    path: Path,
    num_bytes: int,
    num_rows: Mapping[str, int],
    *,
    claims: Claims | None = None,
    whole: Collection[str] = FRAME_ARRAYS,
    look: Callable[[str, int, Any], None] | None = None,
) -> None:
    """Check every row and array of an artefact, and that the file holds nothing else.

    Memory is bounded.

    Parameters
    ----------
    path, num_bytes, claims
        As in ``open_artefact``.
    num_rows : mapping of str to int
        Name of every streamed array to its number of rows.
    whole : collection of str
        Names of all whole arrays, without the arrays of digests.
    look : callable, optional
        Called for each row or record that passes the check, with the name of the streamed array, the number, and the
        row or record. The memory of the row is valid until the call returns.

    Raises
    ------
    DamageError
        At the first row, record or array that changed. Also if an array is missing, unexpected, or of another length.
    """
    with open_artefact(path, num_bytes, claims) as artefact:
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
        num_rows = max(1, _CHECK_BYTES // max(1, row_bytes(layout.row_shape, layout.dtype)))
        span = range(start, min(start + num_rows, layout.num_rows))
        values = artefact.rows(name, span)
    for number, value in zip(span, values, strict=True):
        if look is not None:
            look(name, number, value)
    return span.stop
