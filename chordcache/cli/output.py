"""Standard output: text without escape sequences, and output that takes no more data, as a pipe to ``head``."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import click

from chordcache import __version__
from chordcache.errors import printable_lines

CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit code of a command whose reader has left, as a shell sees it of other programs"""


def echo(text: str, *, err: bool = False, nl: bool = True, lead: str = "", color: str | None = None) -> None:
    """Print a text, with all escaped that a terminal would act on. Commands print with this function only.

    ``lead`` is printed before the text, on a terminal in bold and in a color.
    """
    styled = click.style(printable_lines(lead), bold=True, fg=color) if lead else ""
    click.echo(styled + printable_lines(text), err=err, nl=nl)


def echo_help(ctx: click.Context) -> None:
    """Print the help of a command, with bold headings on a terminal."""
    click.echo(ctx.get_help(), color=ctx.color)


def json_text(data: Any, *, indent: int | None = None) -> str:
    """Return data as JSON in printable ASCII."""
    return json.dumps(data, indent=indent, allow_nan=False).replace("\x7f", "\\u007f")


def origin() -> dict[str, str]:
    """Return what each JSON object of a command begins with: the command, and the version of chordcache."""
    _, _, command = click.get_current_context().command_path.partition(" ")
    return {"command": command, "version": __version__}


def echo_result(data: Any, text: str, as_json: bool) -> None:
    """Print a result: the mapping or the dataclass as one JSON object, or else its text."""
    if as_json:
        text = json_text({**origin(), **(data if isinstance(data, Mapping) else asdict(data))}, indent=2)
    echo(text)


def lost_output(error: OSError) -> str | None:
    """Return the message for an error of a print, and drop the rest of the output. None for another error.

    Python would otherwise fail to write the rest again at its end.
    """
    import traceback  # not before: --help does not need it

    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, BrokenPipeError) or not frames or frames[-1].filename not in (click.utils.__file__, __file__):
        return None
    _redirect_to_null(sys.stdout.fileno())
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return f"cannot write to standard output: {reason}. Make room, or choose another file, and run the same command."


def flush_output() -> None:
    """Write what is left of the output. Python would do it at its end, and end with 120 if that fails."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()


@contextmanager
def closed_pipe_as_exit() -> Iterator[None]:
    """End the command with ``CLOSED_PIPE`` if the reader of its output has left. Click would end it with 1."""
    try:
        yield
    except BrokenPipeError:
        if not drop_closed_pipes():
            raise
        raise click.exceptions.Exit(CLOSED_PIPE) from None


def drop_closed_pipes() -> bool:
    """Drop the rest of the output of streams whose reader has left. Return whether there are any."""
    closed = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream is not None and _has_no_reader(stream)]
    for descriptor in closed:
        _redirect_to_null(descriptor)
    return bool(closed)


def _has_no_reader(stream: object) -> bool:
    poll = select.poll()
    try:
        poll.register(stream.fileno(), 0)  # type: ignore[attr-defined]
    except (OSError, ValueError):  # it is closed, or not a file, as in tests of click
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _redirect_to_null(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
