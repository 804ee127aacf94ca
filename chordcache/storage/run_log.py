"""``runs.jsonl``: one line for each scan, build, verify, repair, merge and gc of a cache, the oldest first."""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from chordcache import __version__
from chordcache.errors import ChordcacheError, UsageError
from chordcache.json_records import Record
from chordcache.records import RunSummary
from chordcache.storage import opener
from chordcache.storage.atomic import append_lines
from chordcache.storage.sealed_json import iter_sealed, seal

RUNS_FILE = "runs.jsonl"
"""Name of the file in a cache"""


class Run(Record, frozen=True):
    """One run of a command on a cache, or on an index."""

    command: str
    """"scan", "build", "verify", "repair", "merge" or "gc\""""
    started: str
    """Time of the start, UTC, ISO 8601"""
    elapsed_seconds: float
    version: str
    """Version of chordcache"""
    outcome: str = "done"
    """"done", or the name of the exception that ended the run"""
    exit_code: int = 0
    """Exit code of the command line for this outcome"""
    counts: Mapping[str, int] = {}
    """Numbers of the run that are not 0, by name: those of ``RunSummary``; for verify ``num_videos`` and the findings
    by kind, such as ``num_damaged``; for gc ``num_removed``"""
    video_seconds: float | None = None
    """[seconds] Length of the videos that were scanned or built, or None if it is not known"""
    num_bytes: int | None = None
    """[bytes] Size of the files that were written, or None if it is not known"""
    jobs: int | None = None
    """Number of worker processes"""


@dataclass
class RunNotes:
    """The parts of a ``Run`` that are known at its end. The code inside ``recorded`` fills them in."""

    exit_code: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    video_seconds: float | None = None
    num_bytes: int | None = None

    def take(self, summary: RunSummary) -> None:
        """Take the counts of a summary."""
        counts = asdict(summary)
        del counts["elapsed_seconds"]
        self.counts = counts.pop("losses") | counts
        self.exit_code = 3 if summary.num_failed else 0


@contextmanager
def recorded(cache: Path, command: str, *, jobs: int | None = None) -> Iterator[RunNotes]:
    """Append a line about the ``with`` block to a run log at its end, also if it raises.

    A log that cannot be written, such as that of a read-only cache, does not end the run: the line is left out. So it
    is if the block raises ``UsageError``, since the run was refused then. ``cache`` may also be an index file, whose
    log is beside it. ``jobs`` is the number of worker processes.
    """
    notes = RunNotes()
    started, clock = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    outcome = "done"
    try:
        yield notes
    except BaseException as error:  # cleanup boundary
        outcome = "" if isinstance(error, UsageError) else type(error).__name__
        other_code = 130 if isinstance(error, KeyboardInterrupt) else 1
        notes.exit_code = error.exit_code if isinstance(error, ChordcacheError) else other_code
        raise
    finally:
        if outcome:
            run = Run(
                command=command,
                started=started,
                elapsed_seconds=round(time.monotonic() - clock, 3),
                version=__version__,
                outcome=outcome,
                exit_code=notes.exit_code,
                counts={name: count for name, count in notes.counts.items() if count},
                video_seconds=None if notes.video_seconds is None else round(notes.video_seconds, 3),
                num_bytes=notes.num_bytes,
                jobs=jobs,
            )
            append_run(cache, run)


def append_run(cache: Path, run: Run) -> None:
    """Append a run to the log of a cache or an index, if it can be written.

    ``verify`` needs no lock of the cache, so the log has a lock of its own during the write.
    """
    folder, name = _log_of(cache)
    if not os.path.exists(cache):
        return
    with suppress(OSError), os.fdopen(opener.open_file(folder, name, os.O_RDWR | os.O_CREAT), "rb") as log:
        with suppress(OSError):  # a disk without flock
            fcntl.flock(log, fcntl.LOCK_EX)
        append_lines(folder, name, [seal(run)])


def _log_of(cache: Path) -> tuple[Path, str]:
    """Return the folder and the name of a log: in a cache, or beside an index."""
    return (cache, RUNS_FILE) if os.path.isdir(cache) else (cache.parent, f"{cache.name}.{RUNS_FILE}")


def read_runs(cache: str | Path) -> Iterator[Run]:
    """Yield the runs of a cache, or the scans of an index file, the oldest first. Without a log there are none.

    A cut last line, left by a process killed during a write, is skipped. Raises as ``iter_sealed`` does.
    """
    yield from iter_sealed(*_log_of(Path(cache)), Run, "a run")


def adopt_last_scan(cache: Path, index: Path) -> None:
    """Copy the last scan of an index to the log of a cache, unless it is there. A damaged log is left alone."""
    with suppress(ChordcacheError, OSError):
        last = deque(read_runs(index), maxlen=1)
        if last and last[0] not in read_runs(cache):
            append_run(cache, last[0])
