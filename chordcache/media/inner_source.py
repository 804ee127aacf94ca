"""Sources that FFmpeg cannot open in place: members of tar files and frames that are pictures."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from chordcache import progress
from chordcache.errors import MediaError, printable
from chordcache.media.parquet_episodes import write_episode
from chordcache.media.picture_folders import in_order, is_picture, write_pictures
from chordcache.media.tar_members import Member, read_table

MAX_BYTES = 2 << 30
"""[bytes] Largest source of this kind. It is in memory while it is read."""

_PIECE_BYTES = 16 << 20

_CONTAINER = re.compile(r"\.(?:tar|parquet)(?=/)")


@dataclass(frozen=True)
class InnerSource:
    """A source in an open file or folder, which is copied to memory in a form that FFmpeg opens."""

    num_bytes: int
    """[bytes] of the member, of all pictures, or of the file"""
    mtime_ns: int
    """[nanoseconds since the epoch] of the file, or of the last picture that was written"""
    ctime_ns: int
    """[nanoseconds since the epoch] the same of the ctime"""
    write: Callable[[BinaryIO], None]
    """Function that writes the copy to a file"""
    is_part: bool = False
    """True if the copy is of a part of the bytes, whose size is known when they are read"""

    def copied(self) -> int:
        """Return the descriptor of a copy in memory. Raises ``MediaError``, also ``refused-size``."""
        if self.num_bytes > MAX_BYTES and not self.is_part:
            what = f"{self.num_bytes} bytes, expected at most {MAX_BYTES} in a tar file or in pictures; make it a video"
            raise MediaError("open", "refused-size", what)
        progress.expect(self.num_bytes)
        fd = os.memfd_create("chordcache", os.MFD_CLOEXEC)
        try:
            with open(fd, "wb", closefd=False) as file:
                self.write(file)
        except BaseException:  # cleanup boundary
            os.close(fd)
            raise
        return fd


def split_inner(path: str) -> tuple[str, str] | None:
    """Return the tar or Parquet file in a path and the name of the source in it, or None. A folder may end so, too.

    Examples
    --------
    >>> split_inner("clips/a.mp4") is None
    True
    """
    for match in _CONTAINER.finditer(path):
        if os.path.isfile(path[: match.end()]):
            return path[: match.end()], path[match.end() + 1 :]
    return None


def inner_source(fd: int, container: str, name: str) -> InnerSource | None:
    """Return the source of a name in an open tar or Parquet file, or of an open folder, or None for a file.

    Raises ``MediaError`` as ``open_source`` does.
    """
    if container.endswith(".parquet") and name:
        status = os.fstat(fd)
        times = status.st_mtime_ns, status.st_ctime_ns
        return InnerSource(status.st_size, *times, lambda file: write_episode(fd, name, MAX_BYTES, file), is_part=True)
    if name:
        return _in_tar(fd, name)
    return _in_folder(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else None


def _in_tar(fd: int, name: str) -> InnerSource:
    """Return a member, or the pictures of a sample: "NAME.000.jpg" or "NAME/000.jpg" and so on."""
    table, status = read_table(fd), os.fstat(fd)
    times = status.st_mtime_ns, status.st_ctime_ns
    of_sample = {} if name in table.members else sample_pictures(table.members, name)
    if not of_sample:
        member = table.member(name)
        return InnerSource(member.size, *times, lambda file: file.writelines(read_member(fd, member)))
    if table.problem:
        raise MediaError("open", "io", table.problem)
    names = in_order(of_sample)
    members = [of_sample[picture] for picture in names]

    def write(file: BinaryIO) -> None:
        write_pictures((b"".join(read_member(fd, member)) for member in members), file)

    return InnerSource(sum(member.size for member in members), *times, write)


def sample_pictures(members: Mapping[str, Member], name: str) -> dict[str, Member]:
    """Return the numbered pictures of a sample, by the rest of their names."""
    starts = f"{name}.", f"{name}/"
    pictures = {other[len(starts[0]) :]: member for other, member in members.items() if other.startswith(starts)}
    return {rest: member for rest, member in pictures.items() if is_picture(rest) and "/" not in rest}


def read_member(fd: int, member: Member) -> Iterator[bytes]:
    """Yield the bytes of a member of an open tar file in pieces. Raises ``MediaError``, ``changed``."""
    for start in range(0, member.size, _PIECE_BYTES):
        num_bytes = min(_PIECE_BYTES, member.size - start)
        piece = os.pread(fd, num_bytes, member.offset + start)
        if len(piece) != num_bytes:
            raise MediaError("open", "changed", "the tar file became shorter while it was read")
        progress.beat()
        yield piece


def _in_folder(fd: int) -> InnerSource:
    names = in_order(os.listdir(fd))
    states = [os.stat(name, dir_fd=fd, follow_symlinks=False) for name in names]
    return InnerSource(
        sum(state.st_size for state in states),
        max(state.st_mtime_ns for state in states),
        max(state.st_ctime_ns for state in states),
        lambda file: write_pictures(_read_files(fd, names, [state.st_size for state in states]), file),
    )


def _read_files(folder: int, names: Sequence[str], sizes: Sequence[int]) -> Iterator[bytes]:
    for name, num_bytes in zip(names, sizes, strict=True):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise MediaError("open", "not-regular", f"the picture '{printable(name)}' is not a regular file")
            yield file.read(num_bytes)
