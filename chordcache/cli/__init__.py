"""The command line. A command parses options, makes one public call, prints the result and sets the exit code."""

from __future__ import annotations

import importlib
import signal
import traceback
from typing import Any

import click

from chordcache import __version__
from chordcache.errors import ChordcacheError

_COMMANDS = ("scan", "index", "plan", "build", "verify", "merge", "gc", "info", "bench", "doctor")
"""Commands in the order in which a user needs them. Each is the function of that name in its own module."""

_PARAMETERS = {
    "stall_seconds": "stall_timeout",
    "file_seconds": "file_timeout",
    "memory_bytes": "file_memory",
}
"""Python parameter to the parameter of the commands, if they have different names"""


class _Commands(click.Group):
    """Group of commands that turns exceptions into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"chordcache.cli.{cmd_name}_command"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ChordcacheError as error:
            self._fail(ctx, str(error), error.exit_code)
        except KeyboardInterrupt:
            self._fail(ctx, "interrupted", 128 + signal.SIGINT)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except Exception as error:  # cli boundary
            self._fail(ctx, f"a bug: {type(error).__name__}: {error}; run with --debug for the traceback", 1)

    def _fail(self, ctx: click.Context, message: str, exit_code: int) -> None:
        if ctx.params.get("debug"):
            click.echo(traceback.format_exc(), err=True, nl=False)
        message = self._with_option(ctx, message)
        name = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
        click.echo(f"{name}: error: {' '.join(message.split())}", err=True)
        ctx.exit(exit_code)

    def _with_option(self, ctx: click.Context, message: str) -> str:
        """Replace the Python parameter that a message begins with by the command's option or argument."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        name, colon, rest = message.partition(": ")
        for parameter in command.params if command else ():
            if colon and parameter.name == _PARAMETERS.get(name, name):
                is_option = isinstance(parameter, click.Option)
                return f"{max(parameter.opts, key=len) if is_option else parameter.human_readable_name}: {rest}"
        return message


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="chordcache")
@click.option("--debug", is_flag=True, help="Print the Python traceback of an error. Give it before the command.")
def cli(debug: bool) -> None:
    """Decode videos once, and store their frames and features where a training job reads them fast.

    Scan folders to make an index, build a cache from the index, and verify the cache.

    \b
    Example:
      chordcache scan videos/
      chordcache build --tier lmdb
      chordcache verify
    """


def main() -> None:
    """Run the ``chordcache`` command."""
    cli(prog_name="chordcache")
