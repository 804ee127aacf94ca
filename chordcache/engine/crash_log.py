"""Record of each worker's last task, which the parent can read after a crash: one file in memory, one slot per worker.

A slot::

    offset  bytes  content
    0       20     number of the current task, in digits
    20      6      the limit that comes next, "stall" or "file"
    32      ...    output of faulthandler: a traceback, after "Timeout (" or "Fatal Python error"

The file has no name. It disappears when the processes end, in whatever way they end.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass

_SLOT_BYTES = 1 << 20
"""Size that holds more than the tracebacks of all threads. Unwritten parts take no memory."""
_NUMBER_BYTES = 20
_HEAD_BYTES = 32

_STANDARD_LIBRARY = os.path.dirname(os.__file__)

_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


@dataclass(frozen=True)
class Note:
    """Last task of one worker."""

    task: int
    limit: str
    """"stall" or "file": the limit that would have been reached first"""
    words: str
    """Output of faulthandler, "" if the worker is alive or was killed"""

    @property
    def timed_out(self) -> bool:
        """True if the worker ended itself at the limit."""
        return self.words.startswith("Timeout (")

    def place(self, function: str) -> str:
        """Return where the thread that runs ``function`` was: its innermost frame outside Python's own library.

        Returns
        -------
        str
            Text such as "flow.py:88 add_frame", or "" if this is unknown.
        """
        for thread in self.words.split("\n\n"):
            frames = _FRAME.findall(thread)
            if any(name == function for _, _, name in frames):
                path, line, name = next((each for each in frames if not _is_standard(each[0])), frames[0])
                return f"{os.path.basename(path)}:{line} {name}"
        return ""


def _is_standard(path: str) -> bool:
    return path.startswith("<frozen") or (path.startswith(_STANDARD_LIBRARY) and "-packages" not in path)


class CrashLog:
    """Parent's end of the file."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.fd = os.memfd_create("chordcache")

    def read(self) -> list[Note]:
        """Return the last task of each worker that has begun one."""
        notes = []
        for number in range(self.num_slots):
            slot = os.pread(self.fd, _SLOT_BYTES, number * _SLOT_BYTES)
            head, words = slot[:_HEAD_BYTES], slot[_HEAD_BYTES:].partition(b"\0")[0]
            if head.strip(b"\0"):
                limit = head[_NUMBER_BYTES:].strip(b"\0 ").decode()
                notes.append(Note(int(head[:_NUMBER_BYTES]), limit, words.decode(errors="replace")))
        return notes

    def close(self) -> None:
        """Close the file. Its memory is freed when the last worker has ended."""
        os.close(self.fd)


class Slot:
    """Worker's end of the file: a slot that no other living worker has.

    Parameters
    ----------
    parent : int
        ID of the process that made the ``CrashLog``.
    fd, num_slots : int
        Values of that ``CrashLog``.

    Raises
    ------
    OSError
        If there is no ``/proc``, which is needed to open the file.
    """

    def __init__(self, parent: int, fd: int, num_slots: int) -> None:
        self.fd = os.open(f"/proc/{parent}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._start = _claim(self.fd, num_slots) * _SLOT_BYTES
        os.pwrite(self.fd, bytes(_HEAD_BYTES + 1), self._start)  # clear what an earlier worker wrote
        os.lseek(self.fd, self._start + _HEAD_BYTES, os.SEEK_SET)  # faulthandler will write here

    def begin(self, task: int) -> None:
        """Write down which task has begun."""
        os.pwrite(self.fd, b"%*d" % (_NUMBER_BYTES, task), self._start)

    def expect(self, limit: str) -> None:
        """Write down which limit comes next, "stall" or "file"."""
        os.pwrite(self.fd, limit.encode().ljust(6), self._start + _NUMBER_BYTES)


def _claim(fd: int, num_slots: int) -> int:
    """Return the number of a free slot. The kernel releases its lock when the process ends."""
    for number in range(num_slots):
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number * _SLOT_BYTES)
        except BlockingIOError:
            continue
        return number
    raise OSError("no slot is free")
