"""Open source files: each once, inside its root, and with the state that a later change shows in."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from chordcache.errors import MediaError
from chordcache.media.inner_source import InnerSource, inner_source, split_inner
from chordcache.media.picture_folders import is_picture
from chordcache.media.source_bytes import as_media_error
from chordcache.object_stores.client import is_in_store
from chordcache.object_stores.sources import ObjectLooks, fetched, identity_of_object
from chordcache.records import Identity

TICK_SECONDS = 0.02
"""Two ticks of the slowest clock that Linux stamps files with (100 Hz). The second of two writes in one tick leaves the
times as they are. Git calls such a file racily clean."""

_PLACE = "/proc/self/fd/{}"
"""Path of a descriptor. Each open of it is of the same file, and has its own position"""

_LookInside = Callable[[], InnerSource | None]

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


@dataclass(frozen=True)
class OpenSource:
    """A source that is open. Its state, its hash and its frames are all of one file."""

    place: str
    """Path of the open file, whatever takes its name. It ends with the context. Each open of it has its own position"""
    state: SourceState


def real_folder(folder: str) -> str:
    """Return the real path of a root, for ``inside`` of the functions below. The root itself may be a link."""
    return folder if is_in_store(folder) else os.path.realpath(folder)


def leads_out(path: str, inside: str | None) -> bool:
    """Return whether links lead a path out of a real folder; False if the folder is None."""
    return inside is not None and not is_in_store(path) and _target_below(inside, path) is None


def _target_below(inside: str, path: str) -> str | None:
    """Return the real path that a path leads to, or None if that is out of a real folder."""
    try:
        target = os.path.realpath(path)
    except OSError:  # a link was replaced at this moment
        return None
    return target if target == inside or target.startswith(os.path.join(inside, "")) else None


@contextmanager
def open_source(path: str, inside: str | None = None, *, settled: bool = False) -> Iterator[OpenSource]:
    """Open a file that is to be read. All that is read from ``place`` is of the file that was checked.

    An object of a store is copied to a temporary file. A member of a tar file is copied to memory. So are the pictures
    of a folder and of an episode in a Parquet file, as a video without sound.

    Parameters
    ----------
    path : str
        Path as ``os.fsdecode`` gives it: of a file, of a folder of numbered pictures, or of a tar file with the name of
        a member, or of the pictures of a sample, after it, or of a Parquet file with "CAMERA/episode_NUMBER" after it.
    inside : str, optional
        Real folder that links must not lead out of, also if they change meanwhile. By default they may lead anywhere.
    settled : bool
        True to make sure that any later write changes the state. If the file was written to a moment ago, its state is
        read again one tick later. This machine's clock only decides whether that is needed. If the clock is wrong, the
        wait may be one tick too long, or missing if the disk's own clock is behind.

    Raises
    ------
    MediaError
        ``refused-link`` if the path leads out of ``inside``; ``not-regular`` for a FIFO, a device, a socket, which are
        not opened, or a folder of other files; ``short`` if a picture is missing; ``refused-size`` if it has to be
        copied to memory and is too large; ``io`` if the file cannot be read; ``changed`` if it has to be settled and is
        being written to all the time, or if it is an object that changes while it is copied.
    StorageError
        If the folder of temporary files does not take the copy of an object.
    UsageError
        If an object store needs other credentials or settings, or pyarrow is not installed.
    """
    if is_in_store(path):
        with fetched(path) as (fd, identity):
            yield OpenSource(_PLACE.format(fd), _state_of_object(identity))
        return
    with _opened(path, inside) as (fd, look_inside):
        state = _settled_state(fd, look_inside) if settled else _state(fd, look_inside)
        with as_media_error():
            content = look_inside()
            copy = content.copied() if content else None
        if copy is None:
            yield OpenSource(_PLACE.format(fd), state)
            return
        try:
            yield OpenSource(_PLACE.format(copy), state)
        finally:
            os.close(copy)


@contextmanager
def _opened(path: str, inside: str | None) -> Iterator[tuple[int, _LookInside]]:
    """Open a file, or the file or folder that has a source inside. Yield a function that returns that source, too."""
    container, name = split_inner(path) or (path, "")
    with as_media_error():
        fd = _open_regular(container, inside)
    try:
        yield fd, partial(inner_source, fd, container, name)
    finally:
        os.close(fd)


def _open_regular(path: str, inside: str | None) -> int:
    """Open a regular file or a folder. Others are only looked at: the open of a FIFO may hang, of a device may act."""
    pinned = os.open(path, os.O_PATH) if inside is None else _pin_below(inside, path)
    try:
        mode = os.fstat(pinned).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise MediaError("open", "not-regular", "not a regular file")
        return os.open(_PLACE.format(pinned), os.O_RDONLY)
    except FileNotFoundError:
        if os.path.lexists(_PLACE.format(pinned)):  # a file system in user space has removed it
            raise
        raise MediaError("open", "io", "/proc is not mounted, through which sources are read") from None
    finally:
        os.close(pinned)


def _pin_below(inside: str, path: str) -> int:
    """Return an ``O_PATH`` descriptor of what is at a path. No link is followed after it was resolved and checked."""
    target = _target_below(inside, path)
    if target is None:
        raise MediaError(
            "open",
            "refused-link",
            "a symbolic link leads it out of its root; to allow that, scan with --follow-symlinks (or build with it, "
            "from a CSV list)",
        )
    fd = os.open(inside, os.O_PATH)
    for name in os.path.relpath(target, inside).split(os.sep):
        above = fd
        try:
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=above)
        except NotADirectoryError:
            what = "Not a directory: a link or a file has the place of a folder in its path"
            raise MediaError("open", "io", what) from None
        finally:
            os.close(above)
    return fd


def _state(fd: int, look_inside: _LookInside) -> SourceState:
    with as_media_error():
        inner = look_inside()
        state = _state_of(os.fstat(fd))
    if inner is None:
        return state
    identity = Identity(inner.num_bytes, inner.mtime_ns)
    return SourceState(identity, max(state.ctime_ns, inner.ctime_ns), state.device, state.inode)


def _state_of(status: os.stat_result) -> SourceState:
    identity = Identity(status.st_size, status.st_mtime_ns)
    return SourceState(identity, status.st_ctime_ns, status.st_dev, status.st_ino)


def _state_of_object(identity: Identity) -> SourceState:
    return SourceState(identity, identity.mtime_ns, 0, 0)


def _settled_state(fd: int, look_inside: _LookInside) -> SourceState:
    state = _state(fd, look_inside)
    for _ in range(_MAX_TICKS):
        if time.time_ns() - state.ctime_ns >= TICK_SECONDS * 1e9:
            return state
        time.sleep(TICK_SECONDS)
        earlier, state = state, _state(fd, look_inside)
        if state == earlier:
            return state
    raise MediaError("open", "changed", "the file is being written to; build again when it is complete")


def look(path: str, inside: str | None = None) -> SourceState:
    """Return the state of a file that is to be read. Raises as ``open_source``."""
    if is_in_store(path):
        return _state_of_object(identity_of_object(path))
    with _opened(path, inside) as (fd, look_inside):
        return _state(fd, look_inside)


def _is_source(path: str) -> bool:
    if os.path.isfile(path):
        return True
    try:
        if split_inner(path):
            return look_or_none(path) is not None
        with os.scandir(path) as listing:
            return any(is_picture(entry.name) for entry in listing)
    except OSError:
        return False


def look_or_none(path: str, inside: str | None = None) -> SourceState | None:
    """Return the same as ``look``, or None if it raises. A later read of the file will raise the reason."""
    try:
        return look(path, inside)
    except MediaError:
        return None


class FolderLooks:
    """Looks at many files, best those of one folder after another. The folder of the last file is remembered.

    A file is not opened: a later read of one that this user may not read raises the reason.
    """

    def __init__(self) -> None:
        self._folder: tuple[str, str | None] | None = None
        self._leads_out = False
        self._objects = ObjectLooks()

    def has_source(self, path: str) -> bool:
        """Return whether a path leads to a file, an object, a folder of pictures, or into a tar or Parquet file."""
        return self._objects.identity_or_none(path) is not None if is_in_store(path) else _is_source(path)

    def look_or_none(self, path: str, inside: str | None = None) -> SourceState | None:
        """Return the state of a file, or None if it is not a regular file below ``inside``, or is behind a link."""
        if is_in_store(path):
            identity = self._objects.identity_or_none(path)
            return _state_of_object(identity) if identity else None
        if split_inner(path):
            return look_or_none(path, inside)
        folder = path.rpartition("/")[0] or "/"  # os.path takes three times as long
        if self._folder != (folder, inside):
            self._folder, self._leads_out = (folder, inside), leads_out(folder, inside)
        if self._leads_out:
            return None
        try:
            status = os.stat(path, follow_symlinks=False)
        except OSError:
            return None
        if stat.S_ISLNK(status.st_mode) or stat.S_ISDIR(status.st_mode):
            return look_or_none(path, inside)
        return _state_of(status) if stat.S_ISREG(status.st_mode) else None


def check_unchanged(path: str, before: SourceState, inside: str | None = None, *, num_frames_ok: int = 0) -> None:
    """Raise ``MediaError`` (``changed``, or as ``look``) if the file at a path is another one, or was written to."""
    if look(path, inside) != before:
        raise MediaError("decode", "changed", "the file changed while it was read", num_frames_ok)
