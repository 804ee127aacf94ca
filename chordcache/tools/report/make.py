"""``report``: the videos of a cache or an index as one HTML file."""

from __future__ import annotations

import math
import os
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError
from chordcache.records import to_json
from chordcache.storage.atomic import no_space_as_error
from chordcache.storage.cache_header import read_header
from chordcache.tools.report.contents import Contents
from chordcache.tools.report.inputs import CacheInput, IndexInput
from chordcache.tools.report.options import Options, check_options
from chordcache.tools.report.page import new_file, new_folder, pieces_of_page
from chordcache.tools.report.problems import Problems, check, read_findings
from chordcache.tools.report.texts import readable


@dataclass(frozen=True)
class ReportResult:
    """The page that was made."""

    path: str
    num_videos: int
    num_shown: int
    """Videos that have a tile"""
    num_bytes: int
    """Size of the page"""
    pictures: str
    """Pictures of each video, such as "posters" """
    num_failures: int
    num_findings: int
    notes: tuple[str, ...]


def report(
    path: str | Path = "cache",
    output: str | Path = "report.html",
    *,
    max_mb: float = 30,
    num_videos: int | None = None,
    folder: bool = False,
    verify: str | Path | None = None,
    progress: bool = False,
) -> ReportResult:
    """Write a page of all videos that works offline: figures, pictures, curves, failures.

    Parameters
    ----------
    path : str or Path
        A cache, or an index. The page of an index has no pictures.
    output : str or Path
        The HTML file. It appears complete or not at all. It must not be in the cache.
    max_mb : float
        [MB] Largest size of the page. Pictures become fewer and smaller, posters last, so that it fits.
    num_videos : int, optional
        Number of videos that have a tile, evenly spread. By default all, but at most 20,000 without ``folder``.
    folder : bool
        True to write one WebP for each video into a folder beside the page, which then does not contain pictures.
    verify : str or Path, optional
        Output of ``chordcache verify --json``. By default the page has the findings of ``verify --quick``.
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
    findings = None if verify is None else Path(verify)
    options = check_options(
        Path(path), Path(output), max_mb, num_videos, verify=findings, has_folder=folder, progress=progress
    )
    problems = Problems(options.max_bytes)
    if findings is not None:
        if not options.is_cache:
            raise UsageError("verify: got it with an index, expected it with a cache. Leave it out.")
        problems.add_damage(read_findings(findings))
        problems.checked = f"chordcache verify --json, read from {readable(findings.name, 80)}"
    config = to_json(read_header(options.path)) if options.is_cache else {}
    if options.is_cache:
        problems.add_quarantine(options.path)
        if findings is None:
            check(options.path, problems)
    with stop_signals(), ExitStack() as stack:
        source: CacheInput | IndexInput = CacheInput(options.path) if options.is_cache else IndexInput(options.path)
        stack.enter_context(source)
        problems.notes += [readable(note) for note in (source.problem, source.index_problem) if note]
        # left in reverse order: the folder gets its name before the page that shows its pictures
        file = stack.enter_context(new_file(options.output))
        folder_in_progress = stack.enter_context(new_folder(options.folder)) if options.folder else None
        with no_space_as_error(tempfile.gettempdir()):
            contents = stack.enter_context(Contents(options, source, problems, config))
            contents.fill(folder_in_progress)
        for piece in pieces_of_page(contents.context(), has_folder=folder):
            file.write(piece)
        _check_size(file, options)
    return ReportResult(
        path=str(options.output),
        num_videos=contents.totals.num_videos,
        num_shown=contents.writer.counts["rows"],
        num_bytes=options.output.stat().st_size,
        pictures=contents.writer.level.name,
        num_failures=len(problems.failures),
        num_findings=len(problems.findings),
        notes=tuple(problems.notes),
    )


def _check_size(page: IO[str], options: Options) -> None:
    """Raise ``UsageError`` if a page is larger than its limit. Lists that grow with the cache keep within it before."""
    page.flush()
    num_bytes = os.fstat(page.fileno()).st_size
    if num_bytes > options.max_bytes:
        least = math.ceil(num_bytes / 1e5) / 10
        raise UsageError(f"max_mb: got {options.max_bytes / 1e6:g}, expected at least {least:g}. Give a larger limit.")
