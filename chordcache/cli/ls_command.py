"""``chordcache ls``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from chordcache.amounts import human_bytes, shortened
from chordcache.cli.options import cache_argument, json_option
from chordcache.cli.output import echo, json_text
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what they load
    from chordcache.look.problems import Problem
    from chordcache.look.video_facts import ListedVideo

_NUM_ALIGNED = 500
"""Number of lines at the start whose widths set those of the columns. All lines would have to wait for the last"""

_MAX_LETTERS = 300
"""Number of letters of a label or a message"""


class _Amount(str):
    """A cell that is aligned to the right."""


@click.command()
@cache_argument()
@click.option("--label", metavar="L", help="Only the videos with this label.")
@click.option("--problems", is_flag=True, help="Quarantined files, damaged videos and absent features, with causes.")
@json_option
def ls(cache: str, label: str | None, problems: bool, as_json: bool) -> None:
    """List the videos of a cache, one in a line.

    \b
    Example:
      chordcache ls cache --label people
    """
    from chordcache.look.problems import iter_problems
    from chordcache.look.video_facts import iter_listed
    from chordcache.read.cache import open_cache  # the import is not for --help

    if problems:
        _echo(iter_problems(cache, label=label), _cells_of_problem, as_json)
    else:
        _echo(iter_listed(open_cache(cache), label), _cells_of_video, as_json)


def _echo(items: Iterable[Any], cells_of: Callable[[Any], list[str]], as_json: bool) -> None:
    for line in _json_lines(items) if as_json else _aligned(map(cells_of, items)):
        echo(line)


def _cells_of_video(video: ListedVideo) -> list[str]:
    return [
        printable(video.key),
        _Amount(f"{video.seconds:.2f} s"),
        _Amount(f"{video.num_frames} frames"),
        f"{video.width}x{video.height}",
        _Amount(human_bytes(video.num_bytes)),
        printable(shortened(video.label or "-", _MAX_LETTERS)),
        printable(video.path),
    ]


def _cells_of_problem(problem: Problem) -> list[str]:
    what = problem.stage if problem.kind == "absent" else problem.cause
    message = printable(shortened(problem.message, _MAX_LETTERS))
    return [problem.kind, printable(what), printable(problem.key), f"{printable(problem.path)}: {message}"]


def _aligned(rows: Iterator[list[str]]) -> Iterator[str]:
    """Yield lines in columns. The last column is not padded. Amounts end below each other."""
    first = list(itertools.islice(rows, _NUM_ALIGNED))
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    for row in itertools.chain(first, rows):
        padded = zip(row, [*widths[:-1], 0], strict=True)
        yield "  ".join(cell.rjust(width) if isinstance(cell, _Amount) else cell.ljust(width) for cell, width in padded)


def _json_lines(items: Iterable[Any]) -> Iterator[str]:
    """Yield one JSON document, an item in a line, so that memory does not grow."""
    yield "["
    earlier = None
    for item in items:
        if earlier is not None:
            yield earlier + ","
        earlier = json_text(dataclasses.asdict(item))
    if earlier is not None:
        yield earlier
    yield "]"
