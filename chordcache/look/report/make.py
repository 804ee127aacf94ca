"""``report``: the videos of a cache or an index as one HTML file."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError
from chordcache.look.report.contents import Contents, Problems
from chordcache.look.report.inputs import Input
from chordcache.look.report.page import check_output, pieces_of_page
from chordcache.look.report.texts import readable
from chordcache.records import to_json
from chordcache.storage.atomic import new_file
from chordcache.storage.cache_header import read_header

MAX_TILES = 10_000
"""Largest number of videos that a page shows"""


@dataclass(frozen=True)
class ReportResult:
    """The page that was made."""

    path: str
    num_videos: int
    num_shown: int
    """Videos that have a tile"""
    num_bytes: int
    """Size of the page"""
    has_pictures: bool
    """False if the page is of an index, or OpenCV is not installed"""
    num_failures: int
    num_findings: int
    notes: tuple[str, ...]


def report(
    path: str | Path = "cache", output: str | Path = "report.html", *, num_videos: int = 1000, progress: bool = False
) -> ReportResult:
    """Write a page of all videos that works offline: figures, pictures, curves, and the findings of a quick check.

    Parameters
    ----------
    path : str or Path
        A cache, or an index. The page of an index has no pictures.
    output : str or Path
        The HTML file. It appears complete or not at all. It must not be in the cache.
    num_videos : int
        Largest number of videos that have a tile, 1 to 10,000, evenly spread. A tile has about 12 kB. Figures are of
        all videos.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    ReportResult

    Raises
    ------
    UsageError
        If an argument is wrong, or the page cannot be written.
    NotFoundError, DamageError, FormatVersionError
        If the cache or the index cannot be read. Damaged artefacts are shown on the page instead.
    NoSpaceError
        If the disk is full.
    """
    path, output = Path(path), Path(output)
    if not 1 <= num_videos <= MAX_TILES:
        raise UsageError(f"num_videos: got {num_videos}, expected 1 to {MAX_TILES}")
    check_output(output, path)
    problems = Problems()
    header: dict[str, Any] = {}
    is_cache = not path.is_file()
    if is_cache:
        header = to_json(read_header(path))
        problems.add_quarantine(path)
        problems.check(path)
    with stop_signals(), ExitStack() as stack:
        source = stack.enter_context(Input(path, is_cache=is_cache))
        problems.notes += map(readable, source.notes)
        file = stack.enter_context(new_file(output, "output: cannot write"))
        contents = Contents(path, source, problems, header)
        contents.fill(num_videos, shown=progress)
        for piece in pieces_of_page(contents.context()):
            file.write(piece.encode())
    return ReportResult(
        path=str(output),
        num_videos=contents.totals.num_videos,
        num_shown=contents.num_shown,
        num_bytes=output.stat().st_size,
        has_pictures=contents.has_pictures,
        num_failures=len(problems.failures),
        num_findings=len(problems.findings),
        notes=tuple(problems.notes),
    )
