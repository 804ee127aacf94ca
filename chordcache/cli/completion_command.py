"""``chordcache completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from chordcache.cli.output import echo

SHELLS = ("bash", "zsh", "fish")
"""Shells that have a completion"""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    In a new shell, the TAB key then completes commands, options, files, folders, tiers, features, presets, and keys of
    a cache.

    \b
    Example:
      chordcache completion bash >> ~/.bashrc
      chordcache completion zsh >> ~/.zshrc
      chordcache completion fish > ~/.config/fish/completions/chordcache.fish
    """
    ctx = click.get_current_context().find_root()
    cls = get_completion_class(shell)
    assert cls is not None
    echo(cls(ctx.command, {}, "chordcache", "_CHORDCACHE_COMPLETE").source(), nl=False)
