"""The HDF5 files that this process has open.

HDF5 does not survive a fork with open files, so they are closed before a fork.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from chordcache.storage.artefacts.artefact import Artefact

_MAX_OPEN = 64
"""Number of files that a process keeps open."""

_FORK_PATIENCE_SECONDS = 5
"""Time that a fork waits for readers in other threads [seconds]. A clip takes milliseconds."""


@dataclass(eq=False)
class _Entry:
    artefact: Artefact
    inode: tuple[int, int] | None
    num_users: int = 0


class _Registry:
    """The open files of this process, least recently used first."""

    def __init__(self) -> None:
        self._leaked: list[object] = []
        self._reset()

    def _reset(self) -> None:
        self._open: OrderedDict[Path, _Entry] = OrderedDict()
        self._replaced: list[_Entry] = []  # still in use, although another file has their name now
        self._changed = threading.Condition()
        self._is_forking = False

    def acquire(self, path: Path, open_: Callable[[], Artefact]) -> _Entry:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_forking)
            entry = self._open.get(path)
            if entry is not None and entry.inode != inode_of(path):
                self._retire(path)
                entry = None
            if entry is None:
                inode = inode_of(path)  # before the open: if the file is replaced meanwhile, the next user sees it
                entry = self._open[path] = _Entry(open_(), inode)
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
    """Register the hook that closes the files before a fork. It runs before the hooks registered so far.

    h5py takes its own lock before a fork, and a reader that waits for that lock would never release its file. So the
    HDF5 store calls this function again after it has loaded h5py. To close the files twice does no harm.
    """
    os.register_at_fork(
        before=_registry.before_fork,
        after_in_parent=_registry.after_fork_in_parent,
        after_in_child=_registry.after_fork_in_child,
    )


guard_forks()


@contextmanager
def use(path: Path, open_: Callable[[], Artefact]) -> Iterator[Artefact]:
    """Yield the open artefact of a file, or the one that ``open_`` opens. Do not fork while it is in use."""
    entry = _registry.acquire(path, open_)
    try:
        yield entry.artefact
    finally:
        _registry.release(entry)


def forget(path: Path) -> None:
    """Close a file, unless it is in use."""
    _registry.forget(path)


def inode_of(path: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a file, or None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
