"""``chordcache pack``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import cache_argument, json_option, size_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import FOLDER


@click.command()
@cache_argument(has_option=False)
@click.option("-o", "--output", type=FOLDER, required=True, metavar="PACKED", help="Folder of the packed cache.")
@size_option("--size", "size", default="1GiB", help="Size of a pack, such as 512MiB.")
@click.option("--move", is_flag=True, help="Remove CACHE when the packed one is complete.")
@json_option
def pack(cache: str, output: str, size: float, move: bool, as_json: bool) -> None:
    """Copy a cache into a read-only one of few large files.

    A million videos have two million files and more, which many shared disks do not take. A packed cache has a few
    thousand. It is read, verified and pushed as before. To build on it, unpack it first.

    \b
    Example:
      chordcache pack cache -o packed
      chordcache pack cache -o packed --move
    """
    from chordcache.building import pack as packing  # --help does not need it

    summary = packing.pack(cache, output, size=int(size), move=move, progress=True)
    videos, packs = counted(summary.num_videos, "video"), counted(summary.num_packs, "pack")
    echo_result(summary, f"packed {videos}, {human_bytes(summary.num_bytes)}, into {packs}", as_json)
