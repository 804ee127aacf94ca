"""``chordcache scan``."""

from __future__ import annotations

from typing import Any

import click

import chordcache as cc
from chordcache.amounts import counted
from chordcache.choices import SCAN_LEVELS
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    display_options,
    jobs_option,
    json_option,
    limits_options,
    skipped_frames,
)
from chordcache.cli.output import echo, echo_result
from chordcache.cli.values import LABELS, PATH, SOURCE
from chordcache.engine.display import Display
from chordcache.errors import printable


@click.command(cls=GroupedCommand)
@click.argument("roots", nargs=-1, required=True, type=SOURCE, metavar="ROOT...")
@click.option(
    "-o", "--output", type=PATH, default="index.json", metavar="FILE",
    help="Index to write: a .json, .jsonl or .csv file.",
)  # fmt: skip
@click.option(
    "--level", type=click.Choice(SCAN_LEVELS), default="packets",
    help="Read the headers of each file, or also every packet, or also decode it to measure motion and loudness, or "
    "also look for black, frozen and repeated frames.",
)  # fmt: skip
@click.option(
    "--labels",
    type=LABELS,
    metavar="dir|FILE.csv",
    help="Label each video by its parent folder, or by a CSV file with the columns path,label,caption.",
)
@click.option("--follow-symlinks", is_flag=True, help="Also follow symbolic links that lead out of a ROOT.")
@jobs_option
@limits_options
@display_options
@json_option
def scan(roots: tuple[str, ...], output: str, as_json: bool, display: Display, **options: Any) -> None:
    """Find all videos in folders and write an index.

    ROOT is a folder, a file, or the URL of an object store. NAME=PATH gives it another name than that of the folder. A
    second scan with the same .json or .jsonl output reads only files that changed.

    Exit code 0: all videos can be read; 3: the index lists some as broken; 10: no root has a video.

    \b
    Example:
      chordcache scan videos/ --labels dir -o index.json
    """
    result = cc.scan(roots, output=output, progress=display, **options)
    if result.taken and display.progress:
        echo(f"chordcache scan: {printable(result.taken)}", err=True)
    for warning in result.warnings:
        echo(f" {printable(warning)}", err=True, lead="chordcache scan: warning:", color="yellow")
    summary = result.summary
    skipped = f"{counted(summary.num_skipped, 'other file')} skipped{skipped_frames(summary.num_frames_skipped)}"
    line = (
        f"scanned {summary.num_done}, unchanged {summary.num_up_to_date}, broken {summary.num_failed} of "
        f"{counted(len(result), 'video')} in {summary.elapsed_seconds:.1f} s, {skipped}; "
        f"see {printable(output)}"
    )
    if as_json or display.progress:
        echo_result(summary, line, as_json)
    click.get_current_context().exit(3 if summary.num_failed else 0)
