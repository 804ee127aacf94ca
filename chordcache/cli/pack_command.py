"""``chordcache pack``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chordcache.amounts import human_bytes
from chordcache.cli.options import cache_argument, json_option, size_option
from chordcache.cli.output import echo_result
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.building.pack import PackSummary


@click.command()
@cache_argument()
@size_option("--size", "size", default="1GiB", show_default=True, help="Size of a pack, such as 512MiB.")
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
    echo_result(summary, _line(summary, cache), as_json)


def _line(summary: PackSummary, cache: str) -> str:
    """Return the result of packing in words."""
    if not summary.num_packs:
        return "nothing to pack"
    packs = "1 pack" if summary.num_packs == 1 else f"{summary.num_packs} packs"
    return (
        f"packed {summary.num_videos} videos, {human_bytes(summary.num_bytes)}, into {packs}; 'chordcache gc "
        f"{printable(cache)}' removes their former files"
    )
