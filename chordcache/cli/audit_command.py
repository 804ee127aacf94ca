"""``chordcache audit``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chordcache.amounts import counted
from chordcache.choices import LIST_FORMATS
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import display_options, jobs_option, json_option, limits_options, list_options
from chordcache.cli.output import echo, echo_result
from chordcache.cli.values import PATH
from chordcache.engine.display import Display
from chordcache.errors import DamageError, UsageError

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.tools.audit import AuditResult


@click.command(cls=GroupedCommand)
@click.argument("source", type=PATH, metavar="LIST|FOLDER")
@click.option(
    "-o", "--output", "outputs", type=PATH, multiple=True, metavar="FILE",
    help="Index of the files to write: the next audit with it decodes only files that changed. Or a page of all files "
    "and findings: a .html file. May be given for each.",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(LIST_FORMATS), metavar="FORMAT", help="Format of the list, as in 'chordcache index'.",
    show_default="csv; of a folder lerobot or pairs",
)  # fmt: skip
@list_options
@click.option("--follow-symlinks", is_flag=True, help="Also follow symbolic links that lead out of a folder.")
@jobs_option
@limits_options
@display_options
@json_option
def audit(source: str, outputs: Sequence[str], as_json: bool, display: Display, **arguments: Any) -> None:
    """Compare a list or a dataset with its videos, decoding all of them.

    Faults are statements that are not true: of frames, frame rate, duration or sound. So are missing and broken files.
    Notes are about black, frozen and repeated frames, sound that ends at another time than the picture, files with the
    same pictures, and missing captions. These may be right.

    Exit code 0: no faults, perhaps notes; 5: faults.

    \b
    Example:
      chordcache audit train.csv --videos clips/ -o audit.html
    """
    from chordcache.tools import audit as auditing  # --help does not need it

    kinds = ["page" if Path(output).suffix == ".html" else "output" for output in outputs]
    if len(set(kinds)) < len(kinds):
        raise UsageError("-o: got two files of one kind, expected one index, or one .html page, or both")
    arguments |= dict(zip(kinds, outputs, strict=True))
    result = auditing.audit(source, progress=display, **arguments)
    if not as_json:
        for finding in result.findings:
            echo(str(finding))
    if as_json or display.progress:
        echo_result(result, _line(result), as_json)
    click.get_current_context().exit(DamageError.exit_code if result.num_faults else 0)


def _line(result: AuditResult) -> str:
    items = f"{counted(result.num_items, 'item')} of {counted(result.num_files, 'file')}"
    findings = f"{counted(result.num_faults, 'fault')}, {counted(result.num_notes, 'note')}"
    return f"audited {items} in {result.elapsed_seconds:.1f} s: {findings}"
