"""Commands below "Make a cache": ``scan``, ``index``, ``build``."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import click

import chordcache as cc
from chordcache.amounts import counted, human_bytes
from chordcache.arguments import parsed_bytes
from chordcache.choices import LIST_FORMATS, SAMPLE_ITEMS, SCAN_LEVELS
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    build_settings_options,
    display_options,
    engine_options,
    index_effects,
    jobs_option,
    json_option,
    limits_options,
    list_options,
    roots_option,
    skipped_frames,
    split_names,
)
from chordcache.cli.output import echo, echo_result
from chordcache.cli.values import CACHE_VARIABLE, FOLDER, LABELS, PATH, SOURCE
from chordcache.engine.display import Display
from chordcache.errors import UsageError, printable

if TYPE_CHECKING:  # --help does not need what these load
    from chordcache.index.lists.write import ListSummary


@click.command(cls=GroupedCommand)
@click.argument("roots", nargs=-1, required=True, type=SOURCE, metavar="ROOT...")
@click.option(
    "-o", "--output", type=PATH, default="index.json", metavar="FILE",
    help="Index to write: a .json, .jsonl or .csv file.",
)  # fmt: skip
@click.option(
    "--level", type=click.Choice(SCAN_LEVELS), default="packets",
    help="Read the headers of each file, or also every packet, or also decode it to measure motion and loudness.",
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
@click.option("--shots", is_flag=True, help="LIST is a cache: write a segment for each shot between two hard cuts.")
@list_options
@json_option
def index(source: str, output: str, shots: bool, as_json: bool, **arguments: Any) -> None:
    """Write an index from a published list of videos, without opening the videos.

    LIST is a file, or a folder for the formats lerobot, pairs, cosmos, webdataset and frames. Items whose file is
    missing are left out. The URL of an object store stands for all videos below it.

    Exit code 0: all files of the list are there; 3: some are missing.

    \b
    Example:
      chordcache index train.csv --format kinetics --videos clips/ -o index.json
    """
    if shots:
        from chordcache.read.shots import index_shots

        num_videos, num_shots = index_shots(source, output)
        line = f"wrote {counted(num_shots, 'shot')} of {counted(num_videos, 'video')} to {printable(output)}"
        echo_result({"num_videos": num_videos, "num_shots": num_shots}, line, as_json)
        return
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


@click.command(cls=GroupedCommand)
@click.argument("index", type=SOURCE, default="index.json")
@click.option(
    "-o", "--output", "cache", type=FOLDER, default="cache", metavar="CACHE",
    help="Folder of the cache.", envvar=CACHE_VARIABLE, show_envvar=True,
)  # fmt: skip
@build_settings_options
@click.option(
    "--dry-run", is_flag=True, help="Print what would be built and why, and estimate its size and time. Change nothing."
)
@click.option(
    "--sample", type=int, metavar="N", show_default=str(SAMPLE_ITEMS),
    help="With --dry-run: build so many videos in a temporary folder for the estimate.",
)  # fmt: skip
@click.option(
    "--budget", "budget_bytes", metavar="SIZE",
    callback=lambda _ctx, _param, value: None if value is None else parsed_bytes(value, "--budget"),
    help="With --dry-run: size such as 400GB. If it does not do, list presets.",
)  # fmt: skip
@click.option(
    "--max-failures",
    metavar="N|P%",
    help="Stop when more files than this have failed: a number such as 0, or a percentage of the index.",
    show_default="never",
)
@click.option("--retry-quarantined", is_flag=True, help="Try again files that failed before, even if nothing changed.")
@click.option("--follow-symlinks", is_flag=True, help="Read videos behind symbolic links that lead out of their root.")
@click.option(
    "--prune", metavar="N|P%",
    help="Afterwards, drop the cached videos that INDEX does not name, if they are at most so many: a number, or a "
    "percentage of the cache, such as 10%.",
)  # fmt: skip
@click.option(
    "--drop", metavar="A,B", callback=lambda _ctx, _param, value: split_names(value) or (),
    help="Take these features out of the cache. 'chordcache gc' removes their files.",
)  # fmt: skip
@click.option(
    "--part", metavar="I/N",
    help="Build only part I of N, in a cache of its own. 'chordcache merge --move' joins all parts.",
)  # fmt: skip
@click.option(
    "--wait", is_flag=True, help="Wait while another process writes to the cache, instead of ending with exit code 11."
)
@roots_option
@engine_options
@limits_options
@display_options
@json_option
def build(
    index: str,
    cache: str,
    dry_run: bool,
    sample: int | None,
    budget_bytes: float | None,
    as_json: bool,
    display: Display,
    **arguments: Any,
) -> None:
    """Decode the videos of an index into a cache.

    Run the same command again to resume, or after videos or settings changed. It builds only what is missing or stale.
    A file that fails is listed in CACHE/quarantine.jsonl, and the build continues.

    INDEX is the output of 'chordcache scan', a folder of videos, the URL of an object store, or a CSV file
    with a column 'path'.
    [default: index.json] The columns 'start_seconds' and 'end_seconds', or 'start_frame' and 'end_frame', make a row a
    segment of its file.

    Exit code 0: all videos are cached; 3: some are in quarantine; 7: --dry-run exceeds --budget; 10: INDEX has no
    videos.

    \b
    Example:
      chordcache build index.json -o cache --tier lmdb --tier npz --features frames,flow
    """
    names = {field.name for field in dataclasses.fields(cc.BuildOptions)}
    chosen = {name: arguments.pop(name) for name in names & arguments.keys()}
    options = cc.BuildOptions(**chosen)
    if dry_run and options.part is not None:
        raise UsageError("--part: got it with --dry-run, expected one of them. A dry run is of the whole build.")
    for name, value in (("--sample", sample), ("--budget", budget_bytes)):
        if value is not None and not dry_run:
            raise UsageError(f"{name}: got it without --dry-run, expected both. Add --dry-run.")
    if dry_run:
        from chordcache.cli import dry_run_output  # not before: --help does not need it

        arguments |= {"options": options, "sample": SAMPLE_ITEMS if sample is None else sample, "progress": display}
        click.get_current_context().exit(dry_run_output.run(index, cache, budget_bytes, as_json, **arguments))
    summary = cc.build(index, cache, options=options, progress=display, **arguments)
    line = (
        f"done {summary.num_done}, up to date {summary.num_up_to_date}, quarantined {summary.num_failed} of "
        f"{summary.num_inputs} in {summary.elapsed_seconds:.1f} s{skipped_frames(summary.num_frames_skipped)}"
        f"{f', pruned {summary.num_pruned}' if summary.num_pruned else ''}"
        f"{index_effects(summary.losses, summary.num_unnamed)}"
    )
    if summary.num_unused_bytes:
        line += f"; {human_bytes(summary.num_unused_bytes)} are not used any more, 'chordcache gc' removes them"
    if summary.num_retryable:
        line += f"; not tried again {summary.num_retryable}: after a correction, add --retry-quarantined"
    see = f"; see {printable(os.path.join(cache, 'quarantine.jsonl'))}" if summary.num_failed else ""
    if as_json or display.progress:
        echo_result(summary, line + see, as_json)
    click.get_current_context().exit(3 if summary.num_failed else 0)
