"""``chordcache build``."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

import chordcache as cc
from chordcache.cli.options import (
    PATH,
    echo_json,
    echo_summary,
    jobs_option,
    json_option,
    limits_options,
    roots_option,
    skipped_frames,
    split_names,
    wait_option,
)
from chordcache.config import config_to_json
from chordcache.errors import printable

if TYPE_CHECKING:
    from chordcache.pipeline.build import DryRun

_BUILD_OPTIONS = ("retry_quarantined", "wait", "follow_symlinks", "source_hash", "limits")
"""Options that are fields of ``BuildOptions``."""


@click.command()
@click.argument("index", type=PATH, default="index.json")
@click.option("-o", "--output", "cache", type=PATH, default="cache", show_default=True, help="Folder of the cache.")
@click.option(
    "--tier", "tiers", multiple=True, default=("lmdb",), show_default=True, metavar="lmdb|npz|hdf5",
    help="Tier to build; may be given several times.",
)  # fmt: skip
@click.option("--features", metavar="A,B", callback=split_names, help="Build only these features.")
@click.option("-c", "--config", type=PATH, help="YAML merged onto the defaults, see configs/default.yaml.")
@click.option("--dry-run", is_flag=True, help="Print what would be built, and build nothing.")
@click.option("--max-failures", metavar="N|P%", help="Stop after more failures than this.")
@click.option("--fail-fast", is_flag=True, help="Stop at the first failure.")
@click.option("--retry-quarantined", is_flag=True, help="Try inputs again that failed before.")
@click.option("--follow-symlinks", is_flag=True, help="Read sources behind links that lead out of their root.")
@click.option("--source-hash", is_flag=True, help="Keep a hash of each source's bytes, for verify --source.")
@wait_option
@roots_option
@jobs_option
@limits_options
@json_option
def build(
    index: str, cache: str, dry_run: bool, max_failures: str | None, fail_fast: bool, as_json: bool, **arguments: Any
) -> None:
    """Cache frames and features of every video of INDEX. Run it again to resume, or after anything changed.

    INDEX is what 'chordcache scan' wrote (index.json by default), or a CSV file with a column path.

    \b
    Example:
      chordcache build index.json -o cache --tier lmdb --tier npz --features frames,flow
    """
    fields = {name: arguments.pop(name) for name in _BUILD_OPTIONS}
    options = cc.BuildOptions("0" if fail_fast else max_failures, **fields)
    if dry_run:
        del arguments["jobs"]
        _echo_dry_run(cc.dry_run(index, cache, options=options, **arguments), as_json)
        return
    summary = cc.build(index, cache, options=options, progress=True, **arguments)
    line = (
        f"done {summary.num_done}, up to date {summary.num_up_to_date}, quarantined {summary.num_failed} of "
        f"{summary.num_inputs} in {summary.elapsed_seconds:.1f} s{skipped_frames(summary)}"
    )
    see = f"; see {printable(os.path.join(cache, 'quarantine.jsonl'))}" if summary.num_failed else ""
    echo_summary(summary, line + see, as_json)
    click.get_current_context().exit(3 if summary.num_failed else 0)


def _echo_dry_run(found: DryRun, as_json: bool) -> None:
    plan = found.plan
    counts = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "plan"}
    features = {
        tier: {name: dict(spec.params) if (spec := plan.specs[name]) else None for name in names}
        for tier, names in plan.requested.items()
    }
    if as_json:
        config = config_to_json(plan.config)
        echo_json({**counts, "cache": str(plan.cache), "features": features, "roots": plan.roots, "config": config})
        return
    click.echo(
        f"would build {found.num_missing} of {found.num_inputs} videos into {printable(plan.cache)} "
        f"(up to date {found.num_up_to_date}, failed before {found.num_failed})"
    )
    for tier, made in features.items():
        for name, params in made.items():
            click.echo(f"  {tier:<5} {name:<8} {json.dumps(params)}")
    for label, root in plan.roots.items():
        click.echo(f"  root  {printable(label):<8} {printable(root)}")
