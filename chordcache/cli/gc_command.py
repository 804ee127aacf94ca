"""``chordcache gc``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

import chordcache as cc
from chordcache.amounts import counted
from chordcache.cli.options import cache_argument, json_option
from chordcache.cli.output import echo, echo_result
from chordcache.errors import UsageError, printable


@click.command()
@cache_argument()
@click.option("--dry-run", is_flag=True, help="List the files and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Remove the files without asking.")
@json_option
def gc(cache: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Remove files that a cache does not use any more.

    Such files stay after a video was built again with other settings, and after a build was killed. The command lists
    them and asks. Other files that 'verify' calls orphans stay: they are named, and the exit code is 6.

    \b
    Example:
      chordcache gc cache --dry-run
    """
    from chordcache.verifying.repair import kept_orphans  # the import is not for --help

    files = cc.collect_garbage(cache, dry_run=True)
    for file in files:
        echo(printable(file), err=as_json)
    is_removed = bool(files) and not dry_run and _is_agreed(files, yes)
    if is_removed:
        files = cc.collect_garbage(cache, only=files)
    kept = kept_orphans(cache)
    data = {"files": files, "num_removed": len(files) if is_removed else 0, "kept": [orphan.file for orphan in kept]}
    if as_json or is_removed or not (files or kept):
        echo_result(data, f"removed {counted(len(files), 'file')}" if is_removed else "nothing to remove", as_json)
    for orphan in kept:
        echo(f"chordcache gc: left {orphan}", err=True)
    if kept:
        click.get_current_context().exit(6)


def _is_agreed(files: Sequence[str], yes: bool) -> bool:
    """Return whether the user lets the command remove the files."""
    num_files = counted(len(files), "file")
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"yes: got no terminal to ask on, expected --yes to remove {num_files}. Add --yes.")
    return yes or click.confirm(f"Remove {num_files}?", err=True)
