"""``chordcache merge``."""

from __future__ import annotations

import click

import chordcache as cc
from chordcache.cli.options import json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import FOLDER


@click.command()
@click.argument("caches", nargs=-1, required=True, type=FOLDER, metavar="CACHE...")
@click.option("-o", "--output", type=FOLDER, required=True, metavar="CACHE", help="Folder of the new cache.")
@click.option("--move", is_flag=True, help="Join all parts that 'build --part' made, and remove them at the end.")
@json_option
def merge(caches: tuple[str, ...], output: str, move: bool, as_json: bool) -> None:
    """Join caches into a new one, without decoding.

    The caches need the same config, tiers and options, and stay as they are. Files of the new cache are hard links to
    theirs, or copies if it is on another disk. Run the same command again to resume.

    \b
    Example:
      chordcache merge monday tuesday -o week
      chordcache merge parts/* -o cache --move
    """
    summary = cc.merge(caches, output, move=move, progress=True)
    line = (
        f"merged {summary.num_done}, up to date {summary.num_up_to_date}, quarantined {summary.num_failed} of "
        f"{summary.num_inputs} in {summary.elapsed_seconds:.1f} s"
    )
    echo_result(summary, line, as_json)
