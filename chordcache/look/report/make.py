"""``report``: the videos of a cache or an index as one HTML file."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError
from chordcache.look.report.contents import Contents
from chordcache.look.report.inputs import CacheInput, IndexInput
from chordcache.look.report.page import new_file, pieces_of_page
from chordcache.look.report.problem_rows import Problems, check, read_findings
from chordcache.look.report.report_options import check_options
from chordcache.look.report.texts import readable
from chordcache.records import to_json
from chordcache.storage.cache_header import read_header


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
    path: str | Path = "cache",
    output: str | Path = "report.html",
    *,
    num_videos: int = 1000,
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
    num_videos : int
        Largest number of videos that have a tile, 1 to 10,000, evenly spread. A tile has about 12 kB. Figures are of
        all videos.
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
    options = check_options(Path(path), Path(output), num_videos, verify=findings, progress=progress)
    problems = Problems()
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
        file = stack.enter_context(new_file(options.output))
        contents = Contents(options, source, problems, config)
        contents.fill()
        for piece in pieces_of_page(contents.context()):
            file.write(piece)
    return ReportResult(
        path=str(options.output),
        num_videos=contents.totals.num_videos,
        num_shown=len(contents.tiles),
        num_bytes=options.output.stat().st_size,
        has_pictures=contents.has_pictures,
        num_failures=len(problems.failures),
        num_findings=len(problems.findings),
        notes=tuple(problems.notes),
    )
