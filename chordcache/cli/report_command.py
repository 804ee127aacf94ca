"""``chordcache report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import chordcache as cc
from chordcache.cli.options import cache_argument, json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import PATH
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.look.report.make import ReportResult


@click.command()
@cache_argument("path", type=PATH, metavar="[CACHE|INDEX]")
@click.option("-o", "--output", type=PATH, default="report.html", show_default=True, metavar="FILE",
              help="The page. It must not be in the cache.")  # fmt: skip
@click.option("--videos", "num_videos", type=int, default=1000, show_default=True, metavar="N",
              help="Largest number of videos that are shown, 12 kB each. Figures are of all.")  # fmt: skip
@json_option
def report(path: str, as_json: bool, **options: Any) -> None:
    """Write a page that shows all videos of a cache, and what is wrong with them.

    The page is one HTML file that works offline. The argument is a cache folder, or an index file, whose page has no
    pictures. By default, it is the value of the variable CHORDCACHE_CACHE, or else the folder cache.

    \b
    Example:
      chordcache report cache -o report.html
    """
    result = cc.report(path, progress=True, **options)
    echo_result(result, _line(result), as_json)


def _line(result: ReportResult) -> str:
    shown = "" if result.num_shown == result.num_videos else f"{result.num_shown:,} of "
    pictures = "" if result.has_pictures else ", no pictures"
    return (
        f"{printable(result.path)}: {shown}{result.num_videos:,} videos{pictures}, "
        f"{result.num_bytes / 1e6:.1f} MB; {result.num_failures:,} failures, {result.num_findings:,} findings"
    )
