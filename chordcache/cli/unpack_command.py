"""``chordcache unpack``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import FOLDER


@click.command()
@click.argument("packed", type=FOLDER)
@click.option("-o", "--output", type=FOLDER, required=True, metavar="CACHE", help="Folder of the new cache.")
@click.option("--move", is_flag=True, help="Remove PACKED when the cache is complete.")
@json_option
def unpack(packed: str, output: str, move: bool, as_json: bool) -> None:
    """Copy a packed cache into one that can be built on.

    Videos whose files are damaged come without these. 'chordcache verify --repair' then builds them again.

    \b
    Example:
      chordcache unpack packed -o cache
    """
    from chordcache.building import pack as packing  # --help does not need it

    summary = packing.unpack(packed, output, move=move, progress=True)
    videos = counted(summary.num_videos, "video")
    echo_result(summary, f"unpacked {videos}, {human_bytes(summary.num_bytes)}", as_json)
