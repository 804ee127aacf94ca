"""The history of a cache: its latest runs as lines of a table."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import NamedTuple

from chordcache.amounts import exact_duration
from chordcache.look.report.texts import readable
from chordcache.storage.run_log import Run, read_runs

_MAX_RUNS = 30


class RunRow(NamedTuple):
    """A line of the table of runs."""

    when: str
    command: str
    videos: str
    failed: str
    took: str
    speed: str
    share: float
    """Speed in percent of the fastest run"""
    outcome: str


def run_rows(cache: Path) -> list[RunRow]:
    """Return the latest runs, the last one first. Raises ``DamageError`` if their log is damaged."""
    runs = deque(read_runs(cache), maxlen=_MAX_RUNS)
    fastest = max((_speed(run) for run in runs), default=0.0)
    return [_row(run, fastest) for run in reversed(runs)]


def _speed(run: Run) -> float:
    """Return the frames per second of a scan or a build, 0 for others."""
    return run.counts.get("num_frames", 0) / max(run.elapsed_seconds, 1e-3)


def _row(run: Run, fastest: float) -> RunRow:
    speed = _speed(run)
    num_videos = run.counts.get("num_videos", run.counts.get("num_inputs", run.counts.get("num_removed", 0)))
    num_failed = run.counts.get("num_failed", run.counts.get("num_damaged", 0) + run.counts.get("num_missing", 0))
    return RunRow(
        when=readable(run.started[:16].replace("T", " "), 20),
        command=readable(run.command, 20),
        videos=f"{num_videos:,}",
        failed=f"{num_failed:,}",
        took=exact_duration(run.elapsed_seconds),
        speed=f"{speed:,.0f} frames/s" if speed else "",
        share=round(100 * speed / fastest, 2) if fastest else 0.0,
        outcome=readable(run.outcome, 40),
    )
