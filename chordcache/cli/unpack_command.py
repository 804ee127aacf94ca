"""``chordcache unpack``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import cache_argument, json_option
from chordcache.cli.output import echo_result
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
    unpacked = f"unpacked {counted(summary.num_videos, 'video')}, {human_bytes(summary.num_bytes)}"
    removal = f"'chordcache gc {printable(cache)}' removes the packs"
    echo_result(summary, f"{unpacked}; {removal}" if summary.num_videos else "nothing to unpack", as_json)
