"""State of a source file: its identity, links that lead out of its root, and changes while it is read."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from chordcache.digests import digest_file
from chordcache.errors import MediaError
from chordcache.records import Identity

TICK_SECONDS = 0.02
"""Two ticks of the slowest clock that Linux stamps files with (100 Hz). The second of two writes in one tick leaves the
times as they are. Git calls such a file racily clean."""

_MAX_TICKS = 5
"""Number of waits for a file that is being written to. After that many, the file is given up."""


@dataclass(frozen=True)
class SourceState:
    """State of a file on its disk. If two states are equal, nothing was written to it in between."""

    identity: Identity
    ctime_ns: int
    """[nanoseconds since the epoch] Changes with each write, also if the mtime is set back after it"""
    device: int
    inode: int
    """Inode of the file that the path leads to. A file that replaces it may have all times copied."""


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Open a source to read its bytes. An error of its disk, also a later one, is raised as ``MediaError``, ``io``."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise MediaError("open", "io", error.strerror or str(error)) from None


def real_folder(folder: str) -> str:
    """Return the real path of a root, for ``inside`` of the functions below. The root itself may be a link."""
    return os.path.realpath(folder)


def leads_out(path: str, inside: str | None) -> bool:
    """Return whether links lead a path out of a real folder; False if the folder is None."""
    if inside is None:
        return False
    target = os.path.realpath(path)
    return target != inside and not target.startswith(os.path.join(inside, ""))


def look(path: str, inside: str | None = None) -> SourceState:
    """Read the state of a file that is to be read.

    Parameters
    ----------
    path : str
        Path as ``os.fsdecode`` gives it.
    inside : str, optional
        Real folder that links must not lead out of; by default they may lead anywhere.

    Raises
    ------
    MediaError
        ``refused-link`` if the path leads out of ``inside``, before it is opened; ``not-regular`` for a FIFO, a device,
        a socket or a folder (opening one may hang forever); ``io`` if the file cannot be read.
    """
    if leads_out(path, inside):
        raise MediaError(
            "open",
            "refused-link",
            "a symbolic link leads it out of its root; to allow that, scan with --follow-symlinks (or build with it, "
            "from a CSV list)",
        )
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise MediaError("open", "not-regular", "not a regular file")
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        raise MediaError("open", "io", error.strerror or str(error)) from None
    identity = Identity(status.st_size, status.st_mtime_ns)
    return SourceState(identity, status.st_ctime_ns, status.st_dev, status.st_ino)


def identify(path: str, inside: str | None = None) -> Identity:
    """Return the identity of a file's content according to the file system. Raises as ``look``."""
    return look(path, inside).identity


def look_or_none(path: str, inside: str | None = None) -> SourceState | None:
    """Return the same as ``look``, or None if it raises. A later read of the file will raise the reason."""
    try:
        return look(path, inside)
    except MediaError:
        return None


def identity_or_none(path: str, inside: str | None = None) -> Identity | None:
    """Return the same as ``identify``, or None if it raises."""
    state = look_or_none(path, inside)
    return state.identity if state else None


def look_settled(path: str, inside: str | None = None) -> SourceState:
    """Return the same as ``look``, and make sure that any later write changes the state.

    If the file was written to a moment ago, look again one tick later. This machine's clock only decides whether that
    is needed. If the clock is wrong, the wait may be one tick too long, or missing if the disk's own clock is behind.

    Raises
    ------
    MediaError
        As ``look``; ``changed`` if the file is being written to all the time.
    """
    state = look(path, inside)
    for _ in range(_MAX_TICKS):
        if time.time_ns() - state.ctime_ns >= TICK_SECONDS * 1e9:
            return state
        time.sleep(TICK_SECONDS)
        earlier, state = state, look(path, inside)
        if state == earlier:
            return state
    raise MediaError("open", "changed", "the file is being written to; build again when it is complete")


def check_unchanged(path: str, before: SourceState, inside: str | None = None, *, num_frames_ok: int = 0) -> None:
    """Raise ``MediaError`` (``changed``, or as ``look``) if a file differs from its state before."""
    if look(path, inside) != before:
        raise MediaError("decode", "changed", "the file changed while it was read", num_frames_ok)


def bytes_changed(found: str, expected: str) -> MediaError:
    """Return the error for a file whose bytes have another hash than before, although nothing wrote to it."""
    what = f"its bytes changed: xxh3-128 {found}, was {expected}; restore the file, or touch it if it is right"
    return MediaError("decode", "changed", what)


def hash_source(path: str) -> str:
    """Return the xxh3-128 of a source's bytes, 32 hex digits. Raise ``MediaError``, ``io``."""
    try:
        return digest_file(path)
    except OSError as error:
        raise MediaError("decode", "io", error.strerror or str(error)) from None
