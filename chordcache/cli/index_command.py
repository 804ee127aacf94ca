"""``chordcache index``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from chordcache.choices import LIST_FORMATS
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import json_option, pairs_of
from chordcache.cli.output import echo, echo_result
from chordcache.cli.values import NAMED_FOLDER, PATH, Choice
from chordcache.errors import printable

if TYPE_CHECKING:
    from chordcache.index.lists.write import ListSummary


@click.command(cls=GroupedCommand)
@click.argument("source", type=PATH, metavar="LIST")
@click.option(
    "-o", "--output", type=PATH, default="index.json", show_default=True, metavar="FILE",
    help="Index to write: a .json, .jsonl or .csv file.",
)  # fmt: skip
@click.option(
    "--format", type=Choice(LIST_FORMATS), default="csv", show_default=True,
    help="Format of the list. csv is also for .tsv, .json, .jsonl and .parquet files with named columns.",
)  # fmt: skip
@click.option(
    "--videos", type=NAMED_FOLDER, multiple=True, metavar="DIR|NAME=DIR",
    help="Folder where the paths of the list begin; further ones for absolute paths.  [default: the list's folder]",
)  # fmt: skip
@click.option(
    "--video-template", metavar="TEMPLATE",
    help="Path of a row's video, with columns in braces, such as '{split}/{id}.mp4'. '.*' at the end is any suffix.",
)  # fmt: skip
@click.option(
    "--column", "columns", multiple=True, metavar="MEANING=NAME", callback=pairs_of("MEANING=NAME"),
    help="Column of a list of the format csv: of the path, the label, the caption, or the start or end of a segment.",
)  # fmt: skip
@click.option("--classes", type=PATH, metavar="FILE", help="Names of the classes, as published with the list.")
@click.option(
    "--where", multiple=True, metavar="COLUMN=VALUE", callback=pairs_of("COLUMN=VALUE"),
    help="Keep only items with this value, such as split=train; may be given several times.",
)  # fmt: skip
@json_option
def index(source: str, output: str, as_json: bool, **arguments: Any) -> None:
    """Write an index from a published list of videos, without opening the videos.

    LIST is a file, or a folder for the formats lerobot and pairs. Items whose file is missing are left out.

    Exit code 0: all files of the list are there; 3: some are missing.

    \b
    Example:
      chordcache index train.csv --format kinetics --videos clips/ -o index.json
    """
    from chordcache.index.lists.items import ListOptions
    from chordcache.index.lists.write import index_list

    names = [field.name for field in dataclasses.fields(ListOptions)]
    options = ListOptions(**{name: arguments.pop(name) for name in names})
    summary = index_list(source, output, options=options, **arguments)
    for note in summary.notes:
        echo(f"chordcache index: {printable(note)}", err=True)
    if summary.num_missing_files:
        echo(f"chordcache index: warning: {_missing(summary)}", err=True)
    data = {name: value for name, value in dataclasses.asdict(summary).items() if name != "notes"}
    echo_result(data, _line(summary, output), as_json)
    click.get_current_context().exit(3 if summary.num_missing_items else 0)


def _missing(summary: ListSummary) -> str:
    """Return the sentence about missing files."""
    names = ", ".join(printable(name) for name in summary.missing_files)
    more = ", ..." if summary.num_missing_files > len(summary.missing_files) else ""
    return f"{summary.num_missing_files} files are missing: {names}{more}"


def _line(summary: ListSummary, output: str) -> str:
    parts = [f"indexed {summary.num_items} items of {summary.num_files} files in {summary.elapsed_seconds:.1f} s"]
    if summary.num_missing_items:
        parts.append(f"left out {summary.num_missing_items} items of {summary.num_missing_files} missing files")
    if summary.num_merged:
        parts.append(f"merged {summary.num_merged} rows")
    if summary.num_not_chosen:
        parts.append(f"{summary.num_not_chosen} items not chosen by --where")
    return f"{', '.join(parts)}; see {printable(output)}"
