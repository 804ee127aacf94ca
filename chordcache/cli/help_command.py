"""``chordcache help``."""

from __future__ import annotations

import click

from chordcache.cli.commands import HelpContext, unknown_command
from chordcache.cli.output import echo_help


@click.command()
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
def help(names: tuple[str, ...]) -> None:
    """Print the help of a command.

    'chordcache help build' is the same as 'chordcache build --help'.

    \b
    Example:
      chordcache help build
    """
    ctx = click.get_current_context().find_root()
    for name in names:
        command = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) else None
        if command is None:
            raise unknown_command(name, ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else ())
        ctx = HelpContext(command, info_name=name, parent=ctx)
    echo_help(ctx)
