"""``chordcache build``."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import click

import chordcache as cc
from chordcache.amounts import human_bytes
from chordcache.choices import SAMPLE_ITEMS
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    build_settings_options,
    display_options,
    engine_options,
    index_effects,
    json_option,
    limits_options,
    roots_option,
    size_option,
    skipped_frames,
    split_names,
)
from chordcache.cli.output import echo_result
from chordcache.cli.values import CACHE_VARIABLE, FOLDER, SOURCE, variable_option
from chordcache.engine.display import Display
from chordcache.errors import UsageError, printable


@click.command(cls=GroupedCommand)
@click.argument("index", type=SOURCE, default="index.json")
@click.option(
    "-o", "--output", "cache", type=FOLDER, default="cache", metavar="CACHE",
    help="Folder of the cache.", **variable_option(CACHE_VARIABLE),
)  # fmt: skip
@build_settings_options
@click.option(
    "--dry-run", is_flag=True, help="Print what would be built and why, and estimate its size and time. Change nothing."
)
@click.option(
    "--sample", type=int, metavar="N", show_default=str(SAMPLE_ITEMS),
    help="With --dry-run: build so many videos in a temporary folder for the estimate, at most 15 seconds of each.",
)  # fmt: skip
@size_option("--budget", "budget_bytes", help="With --dry-run: size such as 400GB. If it does not do, list presets.")
@click.option(
    "--max-failures",
    metavar="N|P%",
    help="Stop when more files than this have failed: a number, or a percentage of the index.",
    show_default="never",
)
@click.option("--fail-fast", is_flag=True, help="Stop when the first file has failed.")
@click.option("--retry-quarantined", is_flag=True, help="Try again files that failed before, even if nothing changed.")
@click.option("--follow-symlinks", is_flag=True, help="Read videos behind symbolic links that lead out of their root.")
@click.option("--prune", is_flag=True, help="Afterwards, drop the cached videos that INDEX does not name.")
@click.option("-y", "--yes", "prune_many", is_flag=True, help="Let --prune and --drop remove more than a tenth.")
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
    max_failures: str | None,
    fail_fast: bool,
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
    options = cc.BuildOptions("0" if fail_fast else max_failures, **chosen)
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
