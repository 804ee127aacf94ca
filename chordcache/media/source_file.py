"""A source as a file: what it is, whether a link leads it out of its root, and whether it stayed what it was."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass

from chordcache.digests import digest_file
from chordcache.errors import MediaError
from chordcache.records import Identity

TICK_SECONDS = 0.02
"""Two ticks of the slowest clock that Linux stamps files with (100 Hz): of two writes in one tick the second leaves
the times as they are. Git calls such a file racily clean."""

_MAX_TICKS = 5
"""A file that is written to for longer than this is not waited for."""


@dataclass(frozen=True)
class SourceState:
    """A file as it stands: equal means that it is the same file with the same content."""

    identity: Identity
    device: int
    inode: int
    """Of the file that the path leads to: another one may have been put in its place with all times copied"""


def real_folder(folder: str) -> str:
    """Where a root really is, as ``inside`` of the functions below; the root itself may be a link."""
    return os.path.realpath(folder)


def leads_out(path: str, inside: str | None) -> bool:
    """Whether links lead a path out of a real folder; never if that is None."""
    if inside is None:
        return False
    target = os.path.realpath(path)
    return target != inside and not target.startswith(os.path.join(inside, ""))


def look(path: str, inside: str | None = None) -> SourceState:
    """Stat a file that is to be read.

    Parameters
    ----------
    path : str
        As ``os.fsdecode`` gives it.
    inside : str, optional
        The real folder that links must not lead out of; by default they may lead anywhere.

    Raises
    ------
    MediaError
        ``refused-link`` if it leads out of ``inside``, before it is opened; ``not-regular`` for a FIFO, a device, a
        socket or a folder (opening one may hang for ever); ``io`` if it cannot be read.
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
    identity = Identity(status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return SourceState(identity, status.st_dev, status.st_ino)


def identify(path: str, inside: str | None = None) -> Identity:
    """What the file system says of a file's content. Raises as ``look``."""
    return look(path, inside).identity


def identity_or_none(path: str, inside: str | None = None) -> Identity | None:
    """``identify``, or None if the file cannot be looked at: whoever reads it will say why."""
    try:
        return identify(path, inside)
    except MediaError:
        return None


def look_settled(path: str, inside: str | None = None) -> SourceState:
    """``look``, and make sure that a write from now on shows in the state.

    A file that was written to a moment ago is looked at again a tick later. This machine's clock only says whether
    that is needed: if it is wrong, the wait is one tick too many, or none where the disk's own clock lags behind.

    Raises
    ------
    MediaError
        As ``look``; ``changed`` if the file is being written to all the time.
    """
    state = look(path, inside)
    for _ in range(_MAX_TICKS):
        if time.time_ns() - state.identity.ctime_ns >= TICK_SECONDS * 1e9:
            return state
        time.sleep(TICK_SECONDS)
        earlier, state = state, look(path, inside)
        if state == earlier:
            return state
    raise MediaError("open", "changed", "it is being written to; build again when it is complete")


def check_unchanged(path: str, before: SourceState, inside: str | None = None, *, num_frames_ok: int = 0) -> None:
    """Raise ``MediaError`` (``changed``, or as ``look``) if a file is not what it was."""
    if look(path, inside) != before:
        raise MediaError("decode", "changed", "the file changed while it was read", num_frames_ok)


def hash_source(path: str, expected: str | None = None) -> str:
    """xxh3-128 of a source's bytes, 32 hex digits. Raises ``MediaError``: ``io``, or ``changed`` if it is not that."""
    try:
        found = digest_file(path)
    except OSError as error:
        raise MediaError("decode", "io", error.strerror or str(error)) from None
    if expected not in (None, found):
        what = f"its bytes changed: xxh3-128 {found}, was {expected}; restore the file, or touch it if it is right"
        raise MediaError("decode", "changed", what)
    return found
