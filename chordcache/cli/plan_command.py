"""``chordcache plan``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from chordcache.building.build_options import BuildOptions
from chordcache.choices import PLAN_FILES
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    build_settings_options,
    jobs_option,
    json_option,
    roots_option,
    size_option,
)
from chordcache.cli.output import echo_result
from chordcache.cli.values import SOURCE


@click.command(cls=GroupedCommand)
@click.argument("index", type=SOURCE, default="index.json")
@build_settings_options
@size_option("--budget", "budget_bytes", help="Size that the cache may have, such as 400GB.")
@click.option("--hours", "budget_hours", type=float, metavar="H", help="Time that the build may take.")
@click.option(
    "--sample", type=int, default=PLAN_FILES, metavar="N",
    help="Number of files to build, at most 30 seconds of each.",
)  # fmt: skip
@click.option("--follow-symlinks", is_flag=True, help="Read videos behind symbolic links that lead out of their root.")
@roots_option
@jobs_option
@json_option
def plan(index: str, sample: int, as_json: bool, **arguments: Any) -> None:
    """Estimate the size and the time of a build into a new cache.

    It is 'chordcache build --dry-run --sample N' for a new cache. -j is the number of workers that the build will have.
    Ranges are from the 10th to the 90th percentile. If they exceed --budget or --hours, the presets that save something
    are listed.

    INDEX is as in 'chordcache build'.  [default: index.json]

    Exit code 0: the settings fit; 7: they do not.

    \b
    Example:
      chordcache plan index.json --tier lmdb --budget 400GB --hours 24 -j 32
    """
    # Not before: --help does not need what it loads
    from chordcache.cli.dry_run_output import budget_lines, dry_run_data, dry_run_lines
    from chordcache.tools.plan import Budget, plan_build

    options = BuildOptions(follow_symlinks=arguments.pop("follow_symlinks"))
    budget = Budget(arguments.pop("budget_bytes"), arguments.pop("budget_hours"))
    result = plan_build(index, sample=sample, budget=budget, options=options, progress=True, **arguments)
    exit_code = 0 if result.fits else 7
    verdict = {"fits": result.fits, "alternatives": [asdict(other) for other in result.alternatives]}
    data = {**dry_run_data(result.dry_run), "cache": None, **verdict, "exit_code": exit_code}
    echo_result(data, "\n".join(dry_run_lines(result.dry_run) + budget_lines(result, budget)), as_json)
    click.get_current_context().exit(exit_code)
