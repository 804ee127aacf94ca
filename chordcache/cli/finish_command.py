"""``chordcache finish``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from chordcache.amounts import counted
from chordcache.cli.options import cache_argument, json_option, skipped_frames
from chordcache.cli.output import echo_result
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.building.join_parts import FinishReport


@click.command()
@cache_argument()
@click.option("--pack", "is_packed", is_flag=True, help="Pack the cache at the end, as 'chordcache pack' does.")
@json_option
def finish(cache: str, is_packed: bool, as_json: bool) -> None:
    """Join the parts of a cache that 'build --part' made.

    Run it when all parts have ended. It moves what they have built into the cache, and writes the catalog, the
    quarantine and the run log. Until then, no other command writes to the cache.

    Exit code 0: all videos are cached; 3: some are in quarantine; 6: parts are missing, and nothing was joined.

    \b
    Example:
      chordcache finish cache
    """
    from chordcache.building import join_parts as pipeline  # --help does not need it
    from chordcache.building.pack import pack

    report = pipeline.finish(cache)
    if is_packed and not report.missing:
        pack(cache, progress=True)
    echo_result(report, _line(report, cache), as_json)
    failed = report.summary.num_failed if report.summary else 0
    click.get_current_context().exit(6 if report.missing else 3 if failed else 0)


def _line(report: FinishReport, cache: str) -> str:
    if not report.num_parts:
        return f"nothing to finish: cache '{printable(cache)}' has no parts"
    if report.missing:
        return (
            f"{len(report.missing)} of {counted(report.num_parts, 'part')} not complete: --array={report.array}; "
            "wait for those that run, and start the others again"
        )
    summary = report.summary
    assert summary is not None
    see = f"; see {printable(os.path.join(cache, 'quarantine.jsonl'))}" if summary.num_failed else ""
    return (
        f"finished {counted(report.num_parts, 'part')}: done {summary.num_done}, up to date {summary.num_up_to_date}, "
        f"quarantined {summary.num_failed} of {summary.num_inputs}{skipped_frames(summary.num_frames_skipped)}{see}"
    )
