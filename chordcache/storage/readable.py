"""Reads that raise for all that cannot be read. An unreadable list must not be taken for an empty or a missing one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from chordcache.errors import ChordcacheError, UnreadableError, printable

OTHER_THING = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Errors of something else in the place of a file: a folder, a file as a folder, a link to itself, a socket"""


def unreadable(path: str | os.PathLike[str], error: OSError, what: str = "file") -> UnreadableError:
    """Return the error about a file or folder that the system does not let this process read."""
    if error.errno in (errno.EACCES, errno.EPERM):
        action = "Let this user read it"
    elif error.errno in OTHER_THING:
        action = f"Put the right {what} in its place"
    else:
        action = "Check its disk or mount"
    reason = error.strerror or str(error)
    text = f"'{printable(path)}': got {reason}, expected a readable {what}. {action}, then run the same command."
    result = UnreadableError(text)
    result.errno = error.errno
    return result


@contextmanager
def readable(path: str | os.PathLike[str], what: str = "file") -> Iterator[None]:
    """Turn every ``OSError`` of the block into ``UnreadableError``, except that of a missing file."""
    try:
        yield
    except (ChordcacheError, FileNotFoundError):
        raise
    except OSError as error:
        raise unreadable(path, error, what) from None


def check_regular(status: os.stat_result) -> None:
    """Raise ``OSError`` unless a status is that of a regular file."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, "a device or a pipe")
