"""Members of tar files: where the bytes of each lie."""

from __future__ import annotations

import io
import os
import posixpath
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

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
"""First bytes of files of gzip, bzip2, xz, zstd and lz4"""


@dataclass(frozen=True)
class Member:
    """The bytes of a member."""

    offset: int
    """[bytes] from the start of the tar file"""
    size: int
    """[bytes]"""


@dataclass(frozen=True)
class TarTable:
    """The members of a tar file that are regular files or links to them, in its order."""

    members: Mapping[str, Member]
    """Name to place"""
    refused: Mapping[str, str]
    """Name that it has twice, or of a link to nothing in it, to what to say of it"""
    problem: str | None
    """Reason why the members after these cannot be read, and what to do, or None"""

    def member(self, name: str) -> Member:
        """Return a member. Raises ``MediaError``, ``io``."""
        if name in self.members:
            return self.members[name]
        if name in self.refused:
            raise MediaError("open", "io", f"the tar file has {self.refused[name]}")
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
    entries: dict[str, Member | str | None] = {}
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
                    if len(entries) == _MAX_MEMBERS:
                        raise tarfile.ReadError("it has too many")
                    name = entry.name.removeprefix("./")
                    folder, base = posixpath.split(name)
                    if base.startswith("._"):  # macOS puts it beside a file
                        continue
                    if entry.isreg() and not entry.issparse():
                        entries[name] = None if name in entries else Member(entry.offset_data, entry.size)
                    elif entry.islnk() or entry.issym():  # the target of a symbolic link begins in its folder
                        target = posixpath.normpath(posixpath.join(folder if entry.issym() else "", entry.linkname))
                        entries[name] = None if name in entries else target
                # tarfile takes a header that it cannot read, and a cut between two members, for the end
                if os.pread(fd, tarfile.BLOCKSIZE, tar.offset) != tarfile.NUL * tarfile.BLOCKSIZE:
                    raise tarfile.ReadError("it has no end, or a bad header")
        except (tarfile.TarError, ValueError, OverflowError, MemoryError) as error:
            reason = printable(str(error) or "bad header")
            problem = f"the tar file is damaged after {len(entries)} members: {reason}. Fetch it again"
            if os.pread(fd, tarfile.BLOCKSIZE, 0).startswith(_COMPRESSED):
                problem = "the tar file is compressed; unpack it"
    members: dict[str, Member] = {}
    refused: dict[str, str] = {}
    for name, place in entries.items():
        member = entries.get(place) if isinstance(place, str) else place
        if isinstance(member, Member):
            members[name] = member
        elif place is None:
            refused[name] = f"two members '{printable(name)}'; give them other names"
        else:
            refused[name] = f"a link '{printable(name)}' to no file in it; add the file"
    return TarTable(members, refused, problem)
