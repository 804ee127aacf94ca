"""The command line. A command parses options, makes one public call, prints the result and sets the exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import warnings
from functools import partial
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from chordcache import __version__
from chordcache.cli.commands import COMMAND, HelpContext, unknown_command, usage_message, write_sections
from chordcache.cli.output import (
    CLOSED_PIPE,
    closed_pipe_as_exit,
    drop_closed_pipes,
    echo,
    flush_output,
    json_text,
    lost_output,
)
from chordcache.cli.values import variables_in
from chordcache.errors import CANNOT_WRITE, ChordcacheError, UsageError, printable

COMMANDS = {
    "Make a cache": {
        "scan": "Find all videos in folders and write an index.",
        "index": "Write an index from a published list of videos, without opening the videos.",
        "build": "Decode the videos of an index into a cache.",
    },
    "Keep it": {
        "verify": "Check a cache for damage.",
        "merge": "Join caches into a new one, without decoding.",
        "pack": "Copy a cache into a read-only one of few large files.",
        "unpack": "Copy a packed cache into one that can be built on.",
        "passport": "Write what a cache has, with one digest over all of it.",
        "gc": "Remove files that a cache does not use any more.",
    },
    "Use it": {
        "export": "Write a cache in a format of other libraries.",
        "push": "Copy a cache into an object store.",
        "pull": "Copy a cache from an object store into a folder.",
    },
    "Look at it": {
        "info": "Show what a cache, an index or one video contains.",
        "ls": "List the videos of a cache or an index, one in a line.",
        "show": "Draw one video as a PNG: frames, flow, motion and sound on one time axis.",
        "report": "Write a page that shows all videos of a cache, and what is wrong with them.",
        "bench": "Measure how fast the cache feeds a training job, against reading the videos themselves.",
    },
    "This machine and this program": {
        "doctor": "Check this machine, and list the features and the presets.",
        "completion": "Print the script that completes commands in a shell.",
        "help": "Print the help of a command.",
    },
}
"""Heading to its commands, in the order in which a user needs them, with the first sentence of each"""

_MODULES = ("make", "keep", "use", "look", "machine")
"""Module with the commands of each heading, which --help does not load"""

_SUMMARIES = {name: summary for commands in COMMANDS.values() for name, summary in commands.items()}

_MAX_LETTERS = 4000
"""Number of letters of an error, which may quote a value of a file"""

_AS_JSON = "chordcache.cli"
"""Key in ``click.Context.meta`` of whether errors are printed as JSON"""


class _Commands(click.Group):
    """Group of commands that turns exceptions into one line and an exit code."""

    context_class = HelpContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_SUMMARIES)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_sections(formatter, {heading: list(commands.items()) for heading, commands in COMMANDS.items()})

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [CompletionItem(name, help=text) for name, text in _SUMMARIES.items() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for module, commands in zip(_MODULES, COMMANDS.values(), strict=True):
            if cmd_name in commands:
                command: click.Command = getattr(importlib.import_module(f"chordcache.cli.{module}_commands"), cmd_name)
                command.context_class = HelpContext
                return command
        return None

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with closed_pipe_as_exit():  # --help and --version print here
            try:
                return super().make_context(*args, **extra)
            except click.UsageError as error:
                if error.ctx is None or (message := usage_message(error)) is None:
                    raise
                self._fail(error.ctx, message, UsageError.exit_code)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_AS_JSON] = "--json" in args  # an error in the options comes before the option is read
        if os.environ.get("NO_COLOR"):
            ctx.color = False
        elif os.environ.get("FORCE_COLOR"):
            ctx.color = True
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in _SUMMARIES:
            raise unknown_command(args[0], _SUMMARIES)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with closed_pipe_as_exit(), warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, ctx)
            try:
                return super().invoke(ctx)
            except ChordcacheError as error:
                self._fail(ctx, str(error), error.exit_code)
            except KeyboardInterrupt:
                self._fail(ctx, "interrupted", 128 + signal.SIGINT)
            except click.UsageError as error:
                if (message := usage_message(error)) is None:
                    raise
                self._fail(ctx, message, UsageError.exit_code)
            except click.exceptions.Exit:
                raise
            except Exception as error:  # cli boundary
                if isinstance(error, BrokenPipeError) and drop_closed_pipes():
                    ctx.exit(CLOSED_PIPE)
                if isinstance(error, OSError) and (message := lost_output(error)):
                    self._fail(ctx, message, CANNOT_WRITE)
                self._fail(ctx, f"a bug: {type(error).__name__}: {error}; run with --debug for the traceback", 1)

    def _fail(self, ctx: click.Context, message: str, exit_code: int) -> NoReturn:
        from chordcache.amounts import shortened  # not before: --help does not need it

        if ctx.params.get("debug"):
            import traceback  # not before: --help does not need it

            echo(traceback.format_exc(), err=True, nl=False)
        message = self._with_option(ctx, message)
        message += variables_in(ctx.meta[COMMAND], message)
        message = printable(shortened(" ".join(message.split()), _MAX_LETTERS))
        if ctx.meta.get(_AS_JSON):
            facts = {"command": ctx.invoked_subcommand, "version": __version__}
            echo(json_text({**facts, "error": message, "exit_code": exit_code}), err=True)
        else:
            name = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
            echo(f" {message}", err=True, lead=f"{name}: error:", color="red")
        ctx.exit(exit_code)

    def _with_option(self, ctx: click.Context, message: str) -> str:
        """Replace the Python parameter that a message begins with by the command's option or argument."""
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        name, colon, rest = message.partition(": ")
        for parameter in command.params if command else ():
            if colon and parameter.name == name:
                is_option = isinstance(parameter, click.Option)
                name = max(parameter.opts, key=len) if is_option else parameter.human_readable_name.strip("[].")
                return f"{name}: {rest}"
        return message


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(
    __version__,
    "-V",
    "--version",
    prog_name="chordcache",
    help="Print the version; 'doctor' prints those of libraries.",
)
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


def _show_warning(ctx: click.Context, message: Warning | str, *_place: object) -> None:
    """Print a Python warning as commands print theirs."""
    name = " ".join(filter(None, (ctx.info_name, ctx.invoked_subcommand)))
    echo(f" {printable(' '.join(str(message).split()))}", err=True, lead=f"{name}: warning:", color="yellow")


def main() -> None:
    """Run the ``chordcache`` command."""
    try:
        try:
            cli(prog_name="chordcache")
        finally:
            flush_output()
    except BrokenPipeError:
        if not drop_closed_pipes():
            raise
        sys.exit(CLOSED_PIPE)
    except OSError as error:  # of --help and --version, which are printed before a command is invoked
        message = lost_output(error)
        if message is None:
            raise
        echo(f"chordcache: error: {message}", err=True)
        sys.exit(CANNOT_WRITE)
