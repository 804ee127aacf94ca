"""``chordcache index``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from chordcache.amounts import counted
from chordcache.choices import LIST_FORMATS
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import json_option, list_options
from chordcache.cli.output import echo, echo_result
from chordcache.cli.values import PATH, SOURCE
from chordcache.errors import printable

if TYPE_CHECKING:
    from chordcache.index.lists.write import ListSummary


@click.command(cls=GroupedCommand)
@click.argument("source", type=SOURCE, metavar="LIST")
@click.option(
    "-o", "--output", type=PATH, default="index.json", metavar="FILE",
    help="Index to write: a .json, .jsonl or .csv file.",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(LIST_FORMATS), default="csv", metavar="FORMAT",
    help=f"Format of the list: {', '.join(LIST_FORMATS)}. csv is also for .tsv, .json, .jsonl and .parquet files with "
    "named columns.",
)  # fmt: skip
@list_options
@json_option
def index(source: str, output: str, as_json: bool, **arguments: Any) -> None:
    """Write an index from a published list of videos, without opening the videos.

    LIST is a file, or a folder for the formats lerobot, pairs, cosmos, webdataset and frames. Items whose file is
    missing are left out. The URL of an object store stands for all videos below it.

    Exit code 0: all files of the list are there; 3: some are missing.

    \b
    Example:
      chordcache index train.csv --format kinetics --videos clips/ -o index.json
    """
    from chordcache.index.lists.write import index_list

    summary = index_list(source, output, **arguments)
    for note in filter(None, (summary.taken, *summary.notes)):
        echo(f"chordcache index: {printable(note)}", err=True)
    if summary.num_missing_files:
        echo(f" {_missing(summary)}", err=True, lead="chordcache index: warning:", color="yellow")
    data = {name: value for name, value in dataclasses.asdict(summary).items() if name not in ("taken", "notes")}
    echo_result(data, _line(summary, output), as_json)
    click.get_current_context().exit(3 if summary.num_missing_items else 0)


def _missing(summary: ListSummary) -> str:
    """Return the sentence about missing files."""
    names = ", ".join(printable(name) for name in summary.missing_files)
    more = ", ..." if summary.num_missing_files > len(summary.missing_files) else ""
    verb = "is" if summary.num_missing_files == 1 else "are"
    return f"{counted(summary.num_missing_files, 'file')} {verb} missing: {names}{more}"


def _line(summary: ListSummary, output: str) -> str:
    items = f"{counted(summary.num_items, 'item')} of {counted(summary.num_files, 'file')}"
    parts = [f"indexed {items} in {summary.elapsed_seconds:.1f} s"]
    if summary.num_missing_items:
        files = counted(summary.num_missing_files, "missing file")
        parts.append(f"left out {counted(summary.num_missing_items, 'item')} of {files}")
    if summary.num_merged:
        parts.append(f"merged {counted(summary.num_merged, 'row')}")
    if summary.num_not_chosen:
        parts.append(f"{counted(summary.num_not_chosen, 'item')} not chosen by --where")
    return f"{', '.join(parts)}; see {printable(output)}"
