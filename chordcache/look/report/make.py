"""``report``: the videos of a cache or an index as one HTML file, with the policy that allows only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from chordcache.arguments import names_arguments
from chordcache.engine.signals import stop_signals
from chordcache.errors import UsageError, printable
from chordcache.json_records import to_json
from chordcache.look.report.contents import Contents, Problems
from chordcache.look.report.inputs import ReportInput
from chordcache.look.report.rows import readable
from chordcache.storage import layout
from chordcache.storage.atomic import new_file
from chordcache.storage.cache_header import read_header
from chordcache.verifying.findings import Leak

_FOLDER = Path(__file__).resolve().parent

MAX_TILES = 10_000
"""Largest number of videos that a page shows"""


_MAX_PAIRS = 500
"""Largest number of pairs of videos that a page shows"""


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
    num_leaks: int
    """Pairs of videos of two splits"""
    notes: tuple[str, ...]


@names_arguments
def report(
    path: str | Path = "cache",
    output: str | Path = "report.html",
    *,
    num_videos: int = 1000,
    leaks: Iterable[Leak] = (),
    progress: bool = False,
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
    leaks : iterable of Leak
        Result of ``chordcache.leaks``. The page shows its first 500 pairs as pictures.
    progress : bool
        True to show a progress bar on standard error, if that is a terminal.

    Returns
    -------
    ReportResult

    Raises
    ------
    UsageError
        If an argument is wrong, or the page cannot be written.
    NotFoundError, DamageError
        If the cache or the index cannot be read. Damaged artefacts are shown on the page instead.
    StorageError
        If the disk is full.
    """
    path, output = layout.cache_folder(path, "path"), Path(output)
    if not 1 <= num_videos <= MAX_TILES:
        raise UsageError(f"num_videos: got {num_videos}, expected 1 to {MAX_TILES}")
    _check_output(output, path)
    problems = Problems()
    header: dict[str, Any] = {}
    is_cache = not path.is_file()
    if is_cache:
        header = to_json(read_header(path))
        problems.check(path)
    with stop_signals(), ExitStack() as stack:
        source = stack.enter_context(ReportInput(path, is_cache=is_cache))
        problems.notes += map(readable, source.notes)
        file = stack.enter_context(new_file(output, "output: cannot write"))
        contents = Contents(path, source, problems, header)
        contents.fill(num_videos, shown=progress)
        leaks = list(leaks)
        pairs = list(map(contents.pair_of, leaks[:_MAX_PAIRS]))
        for piece in pieces_of_page({**contents.context(), "pairs": pairs}):
            file.write(piece.encode())
    return ReportResult(
        path=str(output),
        num_videos=contents.totals.num_videos,
        num_shown=len(contents.rows),
        num_bytes=output.stat().st_size,
        has_pictures=contents.has_pictures,
        num_failures=len(problems.failures),
        num_findings=len(problems.findings),
        num_leaks=len(leaks),
        notes=tuple(problems.notes),
    )


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the content security policy of a page: its own scripts and styles, and pictures from nowhere else."""

    def sources(texts: Sequence[str]) -> str:
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    return (
        f"default-src 'none'; img-src data:; script-src {sources(scripts)}; style-src {sources(styles)}; "
        "base-uri 'none'; form-action 'none'"
    )


def pieces_of_page(context: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page in pieces. Of the values of the template, everything but ``Markup`` is escaped.

    Iterators in the context are read as they are needed.
    """
    # Files of the package are our own code, and go into the page as they are
    names = {"uplot_css": "uplot/uPlot.min.css", "page_css": "page.css", "page_js": "page.js"}
    names["uplot_js"] = "uplot/uPlot.iife.min.js"
    assets = {name: Markup((_FOLDER / file).read_text(encoding="utf-8")) for name, file in names.items()}
    scripts, styles = [assets["uplot_js"], assets["page_js"]], [assets["uplot_css"], assets["page_css"]]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((_FOLDER / "page.html.j2").read_text(encoding="utf-8"))
    return template.generate(**assets, **context, policy=Markup(_policy(scripts, styles)))


def _check_output(output: Path, path: Path) -> None:
    """Raise ``UsageError`` if an output cannot be a new file, lies in a cache, or is what the page is made from."""
    name = printable(output)
    try:
        layout.check_output("output", output)
        if output.is_dir():
            raise UsageError(f"output: got the folder '{name}', expected a file")
        if not output.parent.is_dir():
            raise UsageError(f"output: got '{name}', expected a file in a folder that exists")
        if output.exists() and not output.is_file():
            raise UsageError(f"output: got '{name}', which is not a regular file, expected a file")
        if output.exists() and path.exists() and os.path.samefile(output, path):
            raise UsageError(f"output: got '{name}', which is also 'path', expected another file")
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"output: cannot write '{name}': {error}") from None
