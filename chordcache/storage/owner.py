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

from chordcache.digests import hex64
from chordcache.errors import LockedError, printable
from chordcache.records import Record, parse_json, to_json
from chordcache.storage.atomic import no_space_as_error
from chordcache.storage.readable import read_small

OWNER_FILE = ".owner"

_BEAT_SECONDS = 2.0
"""Time from one count to the next, [seconds]"""

_PATIENCE_SECONDS = 6.0
"""Time without a count after which a process of this machine loses the cache, [seconds]"""

_FAR_PATIENCE_SECONDS = 60.0
"""The same for a process of another machine, [seconds]. Network disks show files as they were up to 30 s ago"""

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
    has_waited = False
    while (mine := _create(path, _this_process())) is None:
        found = _read(path)
        if found is None:
            continue
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
        if os.getpid() == mine.pid:  # not in a fork of the process
            stop.set()
            thread.join()
            with suppress(OSError):
                if _run_in(_read(path)) == mine.run:
                    path.unlink()


def run_of(cache: Path) -> str | None:
    """Return the name of the run that writes to a cache, or None if there is none."""
    return _run_in(_read(cache / OWNER_FILE))


def check_run(cache: Path, run: str) -> None:
    """Raise ``LockedError`` unless a run still is the one that writes to a cache.

    A process that was stopped for a minute, and a worker that outlives its run, may come back when another run writes
    to the cache. They must not publish beside it.
    """
    deadline = time.monotonic() + 2 * _BEAT_SECONDS
    while (found := run_of(cache)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)  # it is being written, or its process makes it again
    if found != run:
        by = "its run has ended" if found is None else f"{_parsed(_read(cache / OWNER_FILE))} writes to it now"
        raise LockedError(f"cache '{printable(cache)}' was taken over: {by}. Run the same command when that ends.")


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


def _create(path: Path, owner: Owner) -> Owner | None:
    """Write the record and return it, or return None if the file exists. Two machines cannot both create a file."""
    with no_space_as_error(path):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return None
        try:
            os.write(fd, _text(owner, 0))
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
    return owner


def _text(owner: Owner, count: int) -> bytes:
    return json.dumps(to_json(owner.replace(count=f"{count:0{_COUNT_DIGITS}}"))).encode("ascii")


def _read(path: Path) -> bytes | None:
    """Return the content of the record, or None if the file does not exist."""
    try:
        return read_small(path)
    except FileNotFoundError:
        return None


def _parsed(text: bytes | None) -> Owner | None:
    """Return the record, or None if a process is about to write it, or something else is in its place."""
    try:
        return parse_json(text or b"", Owner)
    except (ValueError, RecursionError):
        return None


def _run_in(text: bytes | None) -> str | None:
    owner = _parsed(text)
    return owner.run if owner is not None else None


def _has_ended(owner: Owner) -> bool:
    """Return whether a process of this machine has ended. Another user's process may be hidden in /proc."""
    started = _start_of(owner.pid)
    if started is not None:
        return started != owner.started
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return _start_of(owner.pid) is None  # it is a zombie


def _is_dead(path: Path, text: bytes, owner: Owner | None) -> bool:
    """Return whether the process of a record has ended. If it cannot be seen from here, its count is watched."""
    here = _boot()
    if owner is not None and owner.boot == here and _has_ended(owner):
        return True
    is_near = owner is not None and owner.boot.partition(" ")[0] == here.partition(" ")[0]  # or in another container
    deadline = time.monotonic() + (_PATIENCE_SECONDS if is_near else _FAR_PATIENCE_SECONDS)
    while time.monotonic() < deadline:
        try:
            if _read(path) != text:
                return False
        except OSError:  # the disk does not answer well, which says nothing about the process
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _remove(cache: Path, text: bytes) -> None:
    """Remove the record of a process that has ended.

    Only the process that makes the folder ``claim`` may do it, so that no other one removes the next record instead. A
    claim that stays, as it is watched, was left by a process that was killed meanwhile.
    """
    path, claim = cache / OWNER_FILE, cache / ".partial" / f"owner-{hex64(text)}"
    try:
        with no_space_as_error(claim):
            claim.mkdir(parents=True)
    except FileExistsError:
        deadline = time.monotonic() + _FAR_PATIENCE_SECONDS
        while claim.exists():
            if time.monotonic() >= deadline:
                with suppress(OSError):
                    claim.rmdir()
            time.sleep(_POLL_SECONDS)
        return
    try:
        if _read(path) == text:
            path.unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # the next owner may have removed it with the other partial files
            claim.rmdir()


def _beat(path: Path, owner: Owner, stop: threading.Event) -> None:
    """Count until the process ends its work. ``check_run`` detects that another run has the cache."""
    count = 0
    while not stop.wait(_BEAT_SECONDS):
        count += 1
        with suppress(OSError):  # of one moment, or of a full disk: the next count may succeed
            found = _read(path)
            if found is None:
                _create(path, owner)
            elif _run_in(found) == owner.run:
                with path.open("r+b") as file:  # the size stays the same
                    file.write(_text(owner, count))
