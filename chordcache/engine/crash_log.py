"""What a worker was at when it died, where its parent can read it: one file in memory, with a slot for each worker.

A slot::

    offset  bytes  what
    0       20     number of the task under way, in digits
    20      6      the limit that comes next, "stall" or "file"
    32      ...    what faulthandler wrote: a traceback, after "Timeout (" or "Fatal Python error"

The file has no name, so that nothing is left of it, however the processes end.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass

_SLOT_BYTES = 1 << 20
"""More than the tracebacks of all threads take; what is not written takes no memory"""
_NUMBER_BYTES = 20
_HEAD_BYTES = 32

_STANDARD_LIBRARY = os.path.dirname(os.__file__)

_FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


@dataclass(frozen=True)
class Note:
    """What one worker was at last."""

    task: int
    limit: str
    """"stall" or "file": which of the two was about to be reached"""
    words: str
    """What faulthandler wrote, "" if the worker is alive or was killed"""

    @property
    def timed_out(self) -> bool:
        """Whether the worker ended itself at the limit."""
        return self.words.startswith("Timeout (")

    def place(self, function: str) -> str:
        """Where the thread that runs ``function`` was: its innermost frame outside Python's own library.

        Returns
        -------
        str
            Such as "flow.py:88 add_frame", or "" if that is not known.
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
    """The parent's end of the file."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.fd = os.memfd_create("chordcache")

    def read(self) -> list[Note]:
        """What the workers that have begun a task were at."""
        notes = []
        for number in range(self.num_slots):
            slot = os.pread(self.fd, _SLOT_BYTES, number * _SLOT_BYTES)
            head, words = slot[:_HEAD_BYTES], slot[_HEAD_BYTES:].partition(b"\0")[0]
            if head.strip(b"\0"):
                limit = head[_NUMBER_BYTES:].strip(b"\0 ").decode()
                notes.append(Note(int(head[:_NUMBER_BYTES]), limit, words.decode(errors="replace")))
        return notes

    def close(self) -> None:
        """Let go of the file; its memory is freed when the last worker has ended."""
        os.close(self.fd)


class Slot:
    """A worker's end: a slot that no other living worker has.

    Parameters
    ----------
    parent : int
        Process that made the ``CrashLog``.
    fd, num_slots : int
        Of that ``CrashLog``.

    Raises
    ------
    OSError
        If there is no ``/proc`` to open the file through.
    """

    def __init__(self, parent: int, fd: int, num_slots: int) -> None:
        self.fd = os.open(f"/proc/{parent}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        self._start = _claim(self.fd, num_slots) * _SLOT_BYTES
        os.pwrite(self.fd, bytes(_HEAD_BYTES + 1), self._start)  # of a worker that is gone
        os.lseek(self.fd, self._start + _HEAD_BYTES, os.SEEK_SET)  # where faulthandler will write

    def begin(self, task: int) -> None:
        """Write down which task is under way."""
        os.pwrite(self.fd, b"%*d" % (_NUMBER_BYTES, task), self._start)

    def expect(self, limit: str) -> None:
        """Write down which limit comes next, "stall" or "file"."""
        os.pwrite(self.fd, limit.encode().ljust(6), self._start + _NUMBER_BYTES)


def _claim(fd: int, num_slots: int) -> int:
    """Number of a free slot; the kernel frees the lock with the process."""
    for number in range(num_slots):
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number * _SLOT_BYTES)
        except BlockingIOError:
            continue
        return number
    raise OSError("no slot is free")
