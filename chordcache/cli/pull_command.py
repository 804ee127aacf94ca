"""``chordcache pull``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import FOLDER
from chordcache.errors import printable


@click.command()
@click.argument("url")
@click.argument("cache", type=FOLDER)
@json_option
def pull(url: str, cache: str, as_json: bool) -> None:
    """Copy a cache from an object store into a folder.

    URL is where 'chordcache push' copied the cache. CACHE is a new folder, or one of an earlier pull, which gets what
    is missing. The digest of each file is compared while it arrives.

    \b
    Example:
      chordcache pull s3://data/cache cache
    """
    from chordcache.object_stores import pull as copying  # --help does not need it

    summary = copying.pull(url, cache, progress=True)
    line = (
        f"{printable(cache)}: got {counted(summary.num_files, 'file')}, {human_bytes(summary.num_bytes)}; "
        f"{counted(summary.num_present, 'file')} there already; {counted(summary.num_videos, 'video')}"
    )
    echo_result(summary, line, as_json)
