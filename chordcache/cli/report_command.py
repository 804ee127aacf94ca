"""``chordcache report``."""

from __future__ import annotations

from typing import Any

import click

import chordcache as cc
from chordcache.amounts import counted
from chordcache.cli.options import cache_argument, json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import PATH
from chordcache.errors import printable


@click.command()
@cache_argument("path", has_option=False, type=PATH, metavar="[CACHE|INDEX]")
@click.option("-o", "--output", type=PATH, default="report.html", metavar="FILE",
              help="The page. It cannot be in the cache.")  # fmt: skip
@click.option("--videos", "num_videos", type=int, default=1000, metavar="N",
              help="Show at most so many videos, 12 kB each. Figures are of all.")  # fmt: skip
@json_option
def report(path: str, as_json: bool, **options: Any) -> None:
    """Write a page that shows all videos of a cache, and what is wrong with them.

    The page is one HTML file that works offline. The argument is the folder of a cache, or an index file, whose page
    has no pictures.  [env var: CHORDCACHE_CACHE; default: cache]

    \b
    Example:
      chordcache report cache -o report.html
    """
    result = cc.report(path, progress=True, **options)
    shown = "" if result.num_shown == result.num_videos else f"{result.num_shown:,} of "
    pictures = "" if result.has_pictures else ", no pictures"
    line = (
        f"{printable(result.path)}: {shown}{counted(result.num_videos, 'video')}{pictures}, "
        f"{result.num_bytes / 1e6:.1f} MB; {counted(result.num_failures, 'failure')}, "
        f"{counted(result.num_findings, 'finding')}"
    )
    echo_result(result, line, as_json)
