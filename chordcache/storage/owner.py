"""The record of the process that writes to a cache, for disks whose ``flock`` does not reach other machines.

The file ``.owner`` exists while a process writes. That process counts up in it every two seconds. A process that finds
the file of a process that it cannot see, such as one on another machine, watches the count. Clocks are not compared.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from chordcache.errors import LockedError, printable
from chordcache.records import Record, parse_json, to_json
from chordcache.storage.atomic import no_space_as_error, partial_folder

OWNER_FILE = ".owner"

_BEAT_SECONDS = 2.0
"""Time from one count to the next, [seconds]"""

_PATIENCE_SECONDS = 6.0
"""Time without a count after which the process counts as dead, [seconds]. It allows for two late counts"""

_POLL_SECONDS = 0.2

_COUNT_DIGITS = 12


class Owner(Record, frozen=True):
    """The process that writes to a cache."""

    run: str
    """Name of the run, which no other run has"""
    host: str
    boot: str
    """Identifier of the boot of the machine and of the namespace of process ids. Equal if the ids can be compared"""
    pid: int
    started: int
    """[clock ticks since the boot] Start of the process. It differs if another process has the id now"""
    since: str
    """Time when the process took the cache, UTC, for people"""
    count: str = "0" * _COUNT_DIGITS

    def __str__(self) -> str:
        return f"process {self.pid} on {printable(self.host)} since {printable(self.since)}"


@contextmanager
def owned(cache: Path, on_wait: Callable[[str], None] | None = None) -> Iterator[bool]:
    """Be the owner of a cache inside the ``with`` block. Call it under the cache's ``flock``.

    Parameters
    ----------
    cache : Path
        The folder of the cache.
    on_wait : callable, optional
        As in ``locked``: wait until another owner ends.

    Yields
    ------
    bool
        True if this process waited for another owner.

    Raises
    ------
    LockedError
        If another process is the owner, and ``on_wait`` is None.
    NoSpaceError
        If the disk cannot take the record.
    """
    path = cache / OWNER_FILE
    mine = _this_process()
    has_waited = False
    while not _create(path, mine):
        found = _read(path)
        owner = _parsed(found)
        if _is_dead(path, found, owner):
            _remove(cache, found)
            continue
        what = f"cache '{printable(cache)}' is being written by {owner or 'another process'}"
        if on_wait is None:
            raise LockedError(f"{what}; wait until it ends, as 'chordcache build --wait' does")
        if not has_waited:
            on_wait(f"{what}; waiting until it ends")
            has_waited = True
        time.sleep(_POLL_SECONDS)
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(path, mine, stop), name="chordcache-owner", daemon=True)
    thread.start()
    try:
        yield has_waited
    finally:
        stop.set()
        thread.join()
        if _is_of(path, mine):
            with suppress(OSError):
                path.unlink()


def check_not_owned(cache: Path) -> None:
    """Raise ``LockedError`` if another process writes to a cache. The record of one that has ended stays."""
    path = cache / OWNER_FILE
    found = _read(path)
    owner = _parsed(found)
    if found is not None and not _is_dead(path, found, owner):
        by = owner or "another process"
        raise LockedError(f"cache '{printable(cache)}' is being written by {by}; run the same command when it ends")


def _this_process() -> Owner:
    since = datetime.now(UTC).isoformat(" ", "seconds")
    return Owner(uuid.uuid4().hex, socket.gethostname(), _boot(), os.getpid(), _start_of(os.getpid()) or 0, since)


def _boot() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _start_of(pid: int) -> int | None:
    """Return the start of a process [clock ticks since the boot], or None if the process does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _create(path: Path, owner: Owner) -> bool:
    """Write the record, and return True, unless the file exists. Two machines cannot both create a file."""
    with no_space_as_error(path):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        try:
            os.write(fd, _text(owner, 0))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
    return True


def _text(owner: Owner, count: int) -> bytes:
    return json.dumps(to_json(owner.replace(count=f"{count:0{_COUNT_DIGITS}}"))).encode("ascii")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _parsed(text: bytes | None) -> Owner | None:
    """Return the record, or None if a process is about to write it, or something else is in its place."""
    try:
        return parse_json(text or b"", Owner)
    except (ValueError, RecursionError):
        return None


def _is_of(path: Path, owner: Owner) -> bool:
    found = _parsed(_read(path))
    return found is not None and found.run == owner.run


def _is_dead(path: Path, text: bytes | None, owner: Owner | None) -> bool:
    """Return whether the process of a record has ended. If it cannot be seen from here, its count is watched."""
    if owner is not None and owner.boot == _boot() and _start_of(owner.pid) != owner.started:
        return True
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if _read(path) != text:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _remove(cache: Path, text: bytes | None) -> None:
    """Remove the record of a process that has ended. The record of another one, which came meanwhile, is put back."""
    path = cache / OWNER_FILE
    with partial_folder(cache) as folder:
        try:
            os.rename(path, folder / OWNER_FILE)
        except OSError:
            return
        found = _read(folder / OWNER_FILE)
        if found != text:
            with suppress(OSError):
                os.link(folder / OWNER_FILE, path)


def _beat(path: Path, owner: Owner, stop: threading.Event) -> None:
    """Count until the process ends its work. The record of another owner is not written to."""
    count = 0
    while not stop.wait(_BEAT_SECONDS):
        count += 1
        if not _is_of(path, owner):
            return
        with suppress(OSError), path.open("r+b") as file:  # the size stays the same
            file.write(_text(owner, count))
