"""The options ``--version`` and, with it, ``-v``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from chordcache import __version__
from chordcache.cli.output import echo

Function = TypeVar("Function", bound=Callable[..., Any])

_VERBOSE = "chordcache.cli.version"
"""Key in ``click.Context.meta``: True if ``-v`` was given before the command"""


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Print the version, and with ``-v`` those of the libraries, and end the program."""
    is_verbose = ctx.meta.get(_VERBOSE, False)
    if not value:
        if is_verbose and not ctx.resilient_parsing:
            message = "-v: got no --version, expected both. Give -v after the command, as in 'build -v'."
            raise click.UsageError(message, ctx)
        return
    echo(f"chordcache, version {__version__}")
    if is_verbose:
        from chordcache.tools.versions import library_versions

        for name, version in library_versions().items():
            echo(f"{name:11} {version}")
    ctx.exit()


def _be_verbose(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[_VERBOSE] = value


def version_options(function: Function) -> Function:
    """Add ``-V`` and ``-v``, in any order: all eager options are evaluated before the others."""
    function = click.option(
        "-V", "--version", is_flag=True, expose_value=False, callback=_print_version,
        help="Print the version; with -v also those of Python, FFmpeg and other libraries.",
    )(function)  # fmt: skip
    return click.option(
        "-v", "--verbose", is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_be_verbose
    )(function)
