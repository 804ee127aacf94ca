"""``chordcache gc``."""

from __future__ import annotations

import sys

import click

import chordcache as cc
from chordcache.cli.options import cache_argument
from chordcache.errors import UsageError, printable


@click.command()
@cache_argument()
@click.option("--dry-run", is_flag=True, help="List the files and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Remove the files without asking.")
def gc(cache: str, dry_run: bool, yes: bool) -> None:
    """Remove files that a cache does not use any more.

    Such files stay after a video was built again with other settings, and after a build was killed. The command lists
    them and asks. CACHE is the value of the variable CHORDCACHE_CACHE by default, or else the folder cache.

    \b
    Example:
      chordcache gc cache --dry-run
    """
    files = cc.collect_garbage(cache, dry_run=True)
    for file in files:
        click.echo(printable(file))
    if files and not dry_run:
        if not yes and not sys.stdin.isatty():
            raise UsageError(f"yes: got no terminal to ask on, expected --yes to remove {len(files)} files. Add --yes.")
        if yes or click.confirm(f"Remove these {len(files)} files?", err=True):
            files = cc.collect_garbage(cache, only=files)
            click.echo(f"removed {len(files)} files")
