"""``chordcache gc``."""

from __future__ import annotations

import sys

import click

import chordcache as cc
from chordcache.cli.options import PATH
from chordcache.errors import UsageError, printable


@click.command()
@click.argument("cache", type=PATH, default="cache")
@click.option("--dry-run", is_flag=True, help="Only list.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def gc(cache: str, dry_run: bool, yes: bool) -> None:
    """List files that no sidecar of CACHE names, such as superseded generations, and remove them.

    \b
    Example:
      chordcache gc cache --dry-run
    """
    files = cc.collect_garbage(cache, dry_run=True)
    for file in files:
        click.echo(printable(file))
    if files and not dry_run:
        if not yes and not sys.stdin.isatty():
            raise UsageError(f"{len(files)} files would be removed; add --yes to do so")
        if yes or click.confirm(f"Remove these {len(files)} files?", err=True):
            files = cc.collect_garbage(cache, only=files)
            click.echo(f"removed {len(files)} files")
