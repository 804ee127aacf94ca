"""``chordcache push``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import cache_argument, json_option
from chordcache.cli.output import echo_result
from chordcache.errors import printable


@click.command()
@cache_argument(has_option=False)
@click.argument("url")
@json_option
def push(cache: str, url: str, as_json: bool) -> None:
    """Copy a cache into an object store.

    URL names a place in an object store: s3://NAME/PREFIX, gs://... or az://... Endpoint and credentials come from the
    environment. The list of videos comes last. After a stop, or when the cache has changed, the same command sends what
    is missing.

    \b
    Example:
      chordcache push cache s3://data/cache
    """
    from chordcache.object_stores import push as copying  # --help does not need it

    summary = copying.push(cache, url, progress=True)
    line = (
        f"{printable(url)}: sent {counted(summary.num_files, 'file')}, {human_bytes(summary.num_bytes)}; "
        f"{counted(summary.num_present, 'file')} there already; {counted(summary.num_videos, 'video')}"
    )
    echo_result(summary, line, as_json)
