"""``chordcache pack``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import cache_argument, json_option, size_option
from chordcache.cli.output import echo_result
from chordcache.errors import printable


@click.command()
@cache_argument()
@size_option("--size", "size", default="1GiB", help="Size of a pack, such as 512MiB.")
@json_option
def pack(cache: str, size: float, as_json: bool) -> None:
    """Move the files of a cache into few large ones.

    A million videos have two million files and more, which many shared disks do not take. In packs they have a few
    thousand. The cache reads as before, and a build adds new videos beside the packs. Files of the tier hdf5 stay.

    The former files stay until 'chordcache gc' removes them. Packs of which less than half of SIZE is in use are packed
    again with the rest.

    \b
    Example:
      chordcache pack cache
      chordcache gc cache
    """
    from chordcache.building import pack as packing  # --help does not need it

    summary = packing.pack(cache, size=int(size), progress=True)
    line = (
        f"packed {counted(summary.num_videos, 'video')}, {human_bytes(summary.num_bytes)}, into "
        f"{counted(summary.num_packs, 'pack')}; 'chordcache gc {printable(cache)}' removes their former files"
    )
    echo_result(summary, line if summary.num_packs else "nothing to pack", as_json)
