"""Members of tar files: where the bytes of each lie."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from chordcache import progress
from chordcache.errors import MediaError, printable

_MAX_TABLES = 64
"""Number of tar files whose members are remembered"""

_MAX_MEMBERS = 1_000_000
"""Number of members of a tar file, which are kept in memory"""

_MAX_HEADER_BYTES = 1 << 20
"""[bytes] Largest extended header, such as one that holds a long name"""


@dataclass(frozen=True)
class Member:
    """The bytes of a member."""

    offset: int
    """[bytes] from the start of the tar file"""
    size: int
    """[bytes]"""


@dataclass(frozen=True)
class TarTable:
    """The members of a tar file that are regular files, in its order."""

    members: Mapping[str, Member]
    """Name to place, without those whose name the tar file has twice"""
    repeated: frozenset[str]
    """Names that it has twice"""
    problem: str | None
    """Reason why the members after these cannot be read, or None"""

    def member(self, name: str) -> Member:
        """Return a member. Raises ``MediaError``, ``io``."""
        if name in self.members:
            return self.members[name]
        if name in self.repeated:
            raise MediaError("open", "io", f"the tar file has two members '{printable(name)}'; give them other names")
        what = f"; {self.problem}" if self.problem else ""
        raise MediaError("open", "io", f"the tar file has no member '{printable(name)}'{what}")


_tables: dict[tuple[int, ...], TarTable] = {}
"""Device, inode, size, mtime and ctime of a tar file to its table"""


def read_table(fd: int) -> TarTable:
    """Return the members of an open tar file. The last few tar files are remembered."""
    status = os.fstat(fd)
    key = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    table = _tables.get(key)
    if table is None:
        table = _read_table(fd, status.st_size)
        while len(_tables) >= _MAX_TABLES:
            _tables.pop(next(iter(_tables)), None)
        _tables[key] = table
    return table


class _Headers(io.FileIO):
    """A tar file of which only headers are read."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def _read_table(fd: int, num_bytes: int) -> TarTable:
    members: dict[str, Member] = {}
    repeated: set[str] = set()
    problem: str | None = None
    with _Headers(fd, closefd=False) as file:
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                end = 0
                while (entry := tar.next()) is not None:
                    progress.beat()
                    stop = entry.offset_data + entry.size
                    if entry.offset < end or entry.size < 0 or (entry.isreg() and stop > num_bytes):
                        raise tarfile.ReadError(f"the member '{printable(entry.name)}' is not inside of it")
                    end = entry.offset_data
                    if len(members) == _MAX_MEMBERS:
                        raise tarfile.ReadError("it has too many")
                    if entry.isreg() and not entry.issparse():
                        name = entry.name.removeprefix("./")
                        if name in members or name in repeated:
                            repeated.add(name)
                            members.pop(name, None)
                        else:
                            members[name] = Member(entry.offset_data, entry.size)
                # tarfile takes a header that it cannot read, and a cut between two members, for the end
                if os.pread(fd, tarfile.BLOCKSIZE, tar.offset) != tarfile.NUL * tarfile.BLOCKSIZE:
                    raise tarfile.ReadError("it has no end, or a bad header")
        except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
            problem = f"the tar file is damaged after {len(members)} members: {printable(str(error) or 'bad header')}"
    return TarTable(members, frozenset(repeated), problem)
