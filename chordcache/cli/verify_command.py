"""``chordcache verify``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

import chordcache as cc
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    cache_argument,
    display_options,
    echo_json,
    jobs_option,
    json_option,
    limits_options,
    roots_option,
    wait_option,
)
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError, printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.verifying.findings import Damage


@click.command(cls=GroupedCommand)
@cache_argument()
@click.option("--quick", "level", flag_value="quick", default=None, help="Only compare file names and sizes.")
@click.option(
    "--deep", "level", flag_value="deep", help="Also decode every stored frame, and compare counts and times."
)
@click.option(
    "--source", is_flag=True, help="Also decode random frames of each video again, and compare them with the cache."
)
@click.option("--repair", is_flag=True, help="Build damaged and missing files again, and nothing else.")
@click.option("--dry-run", is_flag=True, help="With --repair: only print the findings.")
@wait_option
@limits_options
@roots_option
@jobs_option
@display_options
@json_option
def verify(
    cache: str,
    level: str | None,
    repair: bool,
    dry_run: bool,
    wait: bool,
    limits: Limits,
    as_json: bool,
    quiet: bool,
    display: Display,
    **options: Any,
) -> None:
    """Check a cache for damage.

    CACHE is the value of the variable CHORDCACHE_CACHE by default, or else the folder cache.

    Every file of CACHE must exist with the size and the checksum that were written, and other files must not exist.
    Findings are printed with the command that fixes them, if there is one. --wait, --stall-timeout, --file-timeout,
    --file-memory and --retries only concern --repair.

    Exit code 0: sound; 5: data is damaged or missing; 15: a file cannot be read; 6: the data is intact, but videos are
    not cached yet, a video changed, or a file is left over.

    \b
    Example:
      chordcache verify cache --deep --source
    """
    if dry_run and not repair:
        raise UsageError("--dry-run: got no --repair, expected both. Add --repair.")
    if wait and not repair:
        raise UsageError("--wait: got no --repair, expected both. Add --repair: nothing else waits for a lock.")
    check = functools.partial(cc.verify, cache, level=level or "default", progress=display, **options)
    report = check()
    if repair and not dry_run and report.exit_code == cc.DamageError.exit_code:
        how = {name: options[name] for name in ("jobs", "roots")} | {"wait": wait, "limits": limits}
        summary = cc.repair(cache, report.damage, progress=display, **how)
        if not quiet:
            _echo_repaired(summary, cache)
        report = check()
    _echo(report.damage, cache, as_json, quiet)
    click.get_current_context().exit(report.exit_code)


def _echo_repaired(summary: cc.RunSummary, cache: str) -> None:
    see = f"; see {printable(cache)}/quarantine.jsonl" if summary.num_failed else ""
    click.echo(f"chordcache verify: built {summary.num_done} of {summary.num_inputs} videos again{see}", err=True)


def _echo(damage: Sequence[Damage], cache: str, as_json: bool, quiet: bool) -> None:
    if as_json:
        echo_json([dataclasses.asdict(finding) for finding in damage])
        return
    for finding in damage:
        click.echo(f"{finding.kind}: {finding}")
    if not quiet:
        click.echo(f"{len(damage)} findings" if damage else f"sound: {len(cc.open_cache(cache))} videos")
