"""``chordcache verify``."""

from __future__ import annotations

import functools
from typing import Any

import click

import chordcache as cc
from chordcache.amounts import counted
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    cache_argument,
    config_option,
    display_options,
    jobs_option,
    json_option,
    limits_options,
    roots_option,
)
from chordcache.cli.output import echo, echo_result
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError, printable
from chordcache.verifying.findings import VerifyReport


@click.command(cls=GroupedCommand)
@cache_argument()
@click.option("--quick", "level", flag_value="quick", default=None, help="Only compare file names and sizes.")
@click.option(
    "--deep", "level", flag_value="deep", help="Also decode every stored frame, and compare counts and times."
)
@click.option(
    "--source",
    is_flag=True,
    help="Also compute random frames, flow, motion and all sound again from the videos, and compare.",
)
@click.option("--repair", is_flag=True, help="Build damaged and missing files again, and nothing else.")
@click.option("--dry-run", is_flag=True, help="With --repair: only print the findings.")
@click.option(
    "--part", metavar="I/N",
    help="Check only part I of N, while other processes or machines check the others. Part 1 also checks the lists.",
)  # fmt: skip
@config_option("Config that names the plug-ins and models of CACHE, to check and repair their features too.")
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
    limits: Limits,
    as_json: bool,
    display: Display,
    **options: Any,
) -> None:
    """Check a cache for damage.

    Every file of CACHE must exist with the size and the checksum that were written, and other files must not exist.
    Findings are printed with the command that fixes them, if there is one. --stall-timeout, --file-timeout and
    --file-memory apply to --repair only.

    Exit code 0: intact; 5: data is damaged or missing; 15: a file cannot be read; 6: the data is intact, but videos are
    not cached yet, a video changed, or a file is left over.

    \b
    Example:
      chordcache verify cache --deep --source
    """
    if dry_run and not repair:
        raise UsageError("--dry-run: got no --repair, expected both. Add --repair.")
    if repair and options["part"] is not None:
        raise UsageError("--part: got --repair too, expected one of the two. Repair the whole cache on one machine.")
    check = functools.partial(cc.verify, cache, level=level or "default", progress=display, **options)
    report = check()
    if repair and not dry_run and report.exit_code == cc.DamageError.exit_code:
        how = {name: options[name] for name in ("jobs", "roots", "config")}
        summary = cc.repair(cache, report.damage, limits=limits, progress=display, **how)
        if display.progress:
            see = f"; see {printable(cache)}/quarantine.jsonl" if summary.num_failed else ""
            restored = f", {summary.num_up_to_date} needed only a sidecar" if summary.num_up_to_date else ""
            built = f"built {summary.num_done} of {counted(summary.num_inputs, 'video')} again"
            echo(f"chordcache verify: {built}{restored}{see}", err=True)
        report = check()
    _echo(report, as_json, display.progress, "sizes" if level == "quick" else "checksums")
    click.get_current_context().exit(report.exit_code)


def _echo(report: VerifyReport, as_json: bool, has_summary: bool, checked: str) -> None:
    if as_json:
        echo_result(report, "", as_json)
        return
    for note in report.notes:
        echo(f"chordcache verify: note: {note}", err=True)
    for finding in report.damage:
        echo(f" {finding}", lead=f"{finding.kind}:", color="red")
    if has_summary:
        part = f" in part {report.part}" if report.part else ""
        if report.damage:
            echo(counted(len(report.damage), "finding") + part)
        else:
            echo(f" {counted(report.num_videos, 'video')}{part}, all {checked} match", lead="intact:", color="green")
