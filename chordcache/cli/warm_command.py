"""``chordcache warm``."""

from __future__ import annotations

import click

from chordcache.amounts import counted, human_bytes
from chordcache.cli.options import cache_argument, json_option, size_option, split_names
from chordcache.cli.output import echo_result
from chordcache.cli.values import FEATURES, PATH


@click.command()
@cache_argument()
@size_option("--memory", "memory", required=True, help="Memory to fill at most, such as 64GB.")
@click.option("--videos", type=PATH, metavar="SPLIT", help="Split file with the keys or paths of the videos.")
@click.option("--features", type=FEATURES, metavar="A,B", callback=lambda _ctx, _param, value: split_names(value),
              help="Features that will be read.", show_default="all")  # fmt: skip
@json_option
def warm(cache: str, memory: float, videos: str | None, features: list[str] | None, as_json: bool) -> None:
    """Read the files of a cache into memory before a training job.

    The kernel keeps what it read in its page cache, as long as no program needs the memory. The last line says which
    share is there at the end.

    \b
    Example:
      chordcache warm cache --memory 64GB --videos train.txt
    """
    from chordcache.tools import warm as warming  # --help does not need it

    result = warming.warm(cache, memory=int(memory), videos=videos, features=features, progress=True)
    verb = "does" if result.num_left_out == 1 else "do"
    left_out = f"; {counted(result.num_left_out, 'video')} {verb} not fit" if result.num_left_out else ""
    line = (
        f"read {counted(result.num_videos, 'video')}, {human_bytes(result.num_bytes)}; "
        f"{result.resident_share:.0%} is in memory{left_out}"
    )
    echo_result(result, line, as_json)
