"""The files of a folder that fills itself from a bucket, as the processes see it that read them."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from chordcache import errors
from chordcache.errors import CacheWriteError, UnreadableError, UsageError, printable
from chordcache.forks import no_fork
from chordcache.json_records import parse_json
from chordcache.storage import opener
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.remote.mark import Mark, read_mark, write_mark
from chordcache.storage.remote.messages import Answer, Request, Span, to_line

_PROGRAM = (
    "import sys; order = sys.argv[1:4]; sys.path[:] = sys.argv[4:]; "
    "from chordcache.storage.remote.fetch_process import main; main(*order)"
)

_TOUCH_SECONDS = 60
"""[seconds] A read is noted in the time of the file, at most so often"""


_Wanted: TypeAlias = tuple[str, tuple[Span, ...] | None]
"""Name of a file, or "" for the lists, and the ranges of the file, or None for all of it"""


class BucketFiles:
    """The files of one folder. Several threads may share an object, and a forked process needs a new one."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._folder, self._mark = folder, mark
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._under_way: dict[_Wanted, Future[None]] = {}
        """Request to its arrival"""
        self._asked: dict[int, _Wanted] = {}
        """Number of each request"""
        self._num_requests = 0

    def ensure(self, path: Path, file: StoredFile, spans: Iterable[Span] | None = None) -> None:
        """Fetch a file, or ranges of it, if it does not exist, and note that it is read. Raises as ``fetch``."""
        try:
            age = time.time() - os.lstat(path).st_mtime
        except FileNotFoundError:
            self.fetch(file, spans)
            return
        if age > _TOUCH_SECONDS:
            with suppress(OSError):  # another process removed it
                os.utime(path, follow_symlinks=False)

    def fetch(self, file: StoredFile, spans: Iterable[Span] | None = None) -> None:
        """Fetch a file, or ranges of it. Raises as ``LocalStore.fetch`` and ``LocalStore.fetch_ranges``."""
        self._ask(file, None if spans is None else tuple(spans)).result()

    def fetch_lists(self) -> None:
        """Fetch the lists of the cache that have changed. Raises as ``LocalStore.fetch_lists``."""
        self._ask(None).result()

    def _ask(self, file: StoredFile | None, spans: tuple[Span, ...] | None = None) -> Future[None]:
        wanted = file.name if file else "", spans
        with self._lock:
            arrival = self._under_way.get(wanted)
            if arrival is None:
                arrival = self._under_way[wanted] = Future()
                self._num_requests += 1
                self._asked[self._num_requests] = wanted
                process = self._process or self._start()
                assert process.stdin is not None
                with suppress(BrokenPipeError, ValueError):  # it has ended, which the thread that reads sees
                    process.stdin.write(b"%b\n" % to_line(Request(self._num_requests, file, spans)))
                    process.stdin.flush()
        return arrival

    def _start(self) -> subprocess.Popen[bytes]:
        order = [os.fspath(self._folder), self._mark.url, str(self._mark.limit)]
        command = [sys.executable, "-c", _PROGRAM, *order, *sys.path]
        with no_fork:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._process = process
        threading.Thread(target=self._receive, args=[process], name="chordcache bucket", daemon=True).start()
        return process

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(BrokenPipeError), process:  # if it ended before it read all
            for line in process.stdout or ():
                answer = parse_json(line, Answer)
                with self._lock:
                    arrival = self._under_way.pop(self._asked.pop(answer.number))
                if answer.error:
                    arrival.set_exception(getattr(errors, answer.error)(answer.message))
                else:
                    arrival.set_result(None)
        with self._lock:
            self._process = None
            waiting = list(self._under_way.values())
            self._under_way.clear()
            self._asked.clear()
        for arrival in waiting:
            arrival.set_exception(
                UnreadableError(
                    f"'{printable(self._folder)}': the process that fetches files ended with code {process.returncode}"
                )
            )

    def close(self) -> None:
        """End the process that fetches."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()  # the thread that reads closes its pipes


_marks: dict[Path, Mark] = {}
"""Folders that the user of this process, or of the one that it was started by, lets fill themselves. The mark in a
folder is not believed: a folder from a stranger would have this process connect to any address"""

_files: dict[Path, BucketFiles] = {}
"""Folder to its files"""

_of_parents: list[object] = []
"""In a forked process, the files of its parent, which are neither used nor closed there"""


def _leave_to_parent() -> None:
    _of_parents.append(_files.copy())
    _files.clear()


def _close_all() -> None:
    for files in _files.values():
        files.close()


os.register_at_fork(after_in_child=_leave_to_parent)
atexit.register(_close_all)


def files_of(folder: Path) -> BucketFiles | None:
    """Return the files of a folder that fills itself from a bucket, or None for a cache of its own."""
    files, mark = _files.get(folder), _marks.get(folder)
    if files is None and mark is not None:
        files = _files.setdefault(folder, BucketFiles(folder, mark))
    return files


def mark_of(folder: Path) -> Mark | None:
    """Return what ``let_fill`` takes in another process, or None for a cache of its own."""
    return _marks.get(folder)


def let_fill(folder: Path, mark: Mark | None) -> None:
    """Let a folder fill itself, as the process did that sent the mark."""
    if mark is not None:
        _marks[folder] = mark


def fill_from(folder: Path, url: str, limit: int) -> None:
    """Let a folder fill itself from the cache in a bucket, and fetch the lists of the cache.

    Raises ``UsageError`` if the folder holds something else, and as ``LocalStore.fetch_lists`` does.
    """
    mark = read_mark(folder) if folder.is_dir() else None
    names = set(opener.list_folder(folder)) if folder.is_dir() else set()
    if mark is None and not names <= {".partial"}:  # of another process that opens it
        raise UsageError(
            f"local: got '{printable(folder)}', which holds something else, expected a new folder, or one that "
            f"was filled from '{printable(url)}'"
        )
    if mark is not None and mark.url != url and "catalog.bin" in names:
        raise UsageError(
            f"local: got '{printable(folder)}', which is filled from '{printable(mark.url)}', expected a folder for "
            f"'{printable(url)}'. Name another one."
        )
    if mark != Mark(url, limit):
        try:
            write_mark(folder, Mark(url, limit))
        except OSError as error:
            if isinstance(error, CacheWriteError):
                raise
            what = f"local: got '{printable(folder)}', expected a folder that can be written"
            raise UsageError(f"{what}: {error.strerror}") from None
    if _marks.get(folder) != Mark(url, limit):
        let_fill(folder, Mark(url, limit))
        earlier = _files.pop(folder, None)
        if earlier is not None:
            earlier.close()
    files = files_of(folder)
    assert files is not None
    files.fetch_lists()
