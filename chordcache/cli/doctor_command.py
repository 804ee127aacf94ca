"""``chordcache doctor``."""

from __future__ import annotations

import dataclasses

import click

from chordcache.cli.options import jobs_option, json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import FOLDER
from chordcache.errors import printable
from chordcache.tools.doctor import diagnose


@click.command()
@click.argument("path", type=FOLDER, default=".")
@jobs_option
@json_option
def doctor(path: str, jobs: int | None, as_json: bool) -> None:
    """Check the limits and settings of this machine.

    PATH is the folder of the cache, or the folder in which you will make it.  [default: (the working folder)] Each
    finding that matters comes with the reason and with what to type.

    Exit code 0, also with findings.

    \b
    Example:
      chordcache doctor /data/cache
    """
    findings = diagnose(path, jobs=jobs)
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:8} {finding.name:12} {printable(finding.what)}")
        if finding.severity != "ok":
            lines += [f"{'':21} {printable(finding.why)}", f"{'':21} run: {printable(finding.action)}"]
    echo_result({"findings": [dataclasses.asdict(finding) for finding in findings]}, "\n".join(lines), as_json)
