"""``chordcache unpack``."""

from __future__ import annotations

from dataclasses import asdict

import click

from chordcache.amounts import human_bytes
from chordcache.cli.options import cache_argument, echo_json, json_option
from chordcache.cli.output import echo
from chordcache.errors import printable


@click.command()
@cache_argument()
@json_option
def unpack(cache: str, as_json: bool) -> None:
    """Give the videos in packs files of their own again.

    \b
    Example:
      chordcache unpack cache
      chordcache gc cache
    """
    from chordcache.building import pack as packing  # --help does not need it

    summary = packing.unpack(cache, progress=True)
    if as_json:
        echo_json(asdict(summary))
    elif not summary.num_videos:
        echo("nothing to unpack")
    else:
        echo(
            f"unpacked {summary.num_videos} videos, {human_bytes(summary.num_bytes)}; 'chordcache gc "
            f"{printable(cache)}' removes the packs"
        )
