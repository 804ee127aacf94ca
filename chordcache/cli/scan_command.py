"""``chordcache scan``."""

from __future__ import annotations

from typing import Any

import click

import chordcache as cc
from chordcache.cli.options import PATH, echo_summary, jobs_option, json_option, limits_options, skipped_frames
from chordcache.errors import printable
from chordcache.records import SCAN_LEVELS


@click.command()
@click.argument("roots", nargs=-1, required=True, type=PATH, metavar="ROOT...")
@click.option("-o", "--output", type=PATH, default="index.json", show_default=True, help=".json, .jsonl or .csv")
@click.option(
    "--level", type=click.Choice(SCAN_LEVELS), default="packets", show_default=True,
    help="Read headers; also all packets; also decode, for motion and loudness.",
)  # fmt: skip
@click.option("--labels", metavar="dir|FILE.csv", help="Label by parent folder, or join columns path,label,caption.")
@click.option("--follow-symlinks", is_flag=True, help="Also follow links that lead out of a root.")
@jobs_option
@limits_options
@json_option
def scan(roots: tuple[str, ...], output: str, as_json: bool, **options: Any) -> None:
    """Look at every video below ROOT and write an index.

    A ROOT is a folder, a file, or NAME=PATH. Records of unchanged files are copied from an existing index.

    \b
    Example:
      chordcache scan videos/ --labels dir -o index.json
    """
    result = cc.scan(roots, output=output, progress=True, **options)
    for warning in result.warnings:
        click.echo(f"chordcache scan: warning: {printable(warning)}", err=True)
    summary = result.summary
    skipped = f"{summary.num_skipped} other files skipped{skipped_frames(summary)}"
    line = (
        f"scanned {summary.num_done}, unchanged {summary.num_up_to_date}, broken {summary.num_failed} of "
        f"{len(result)} videos in {summary.elapsed_seconds:.1f} s, {skipped}; "
        f"see {printable(output)}"
    )
    echo_summary(summary, line, as_json)
    click.get_current_context().exit(3 if summary.num_failed else 0)
