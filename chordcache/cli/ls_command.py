"""``chordcache ls``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from chordcache.amounts import human_bytes, shortened
from chordcache.cli.options import cache_and_video, cache_argument, json_option
from chordcache.cli.output import echo, json_text, origin
from chordcache.cli.values import CACHE_OR_KEY, KEY
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.look.video_facts import ListedVideo

_NUM_ALIGNED = 500
"""Number of lines at the start whose widths set those of the columns. All lines would have to wait for the last"""

_MAX_LETTERS = 300
"""Number of letters of a label"""


class _Amount(str):
    """A cell that is aligned to the right."""


_HEADER = ["key", _Amount("duration"), _Amount("frames"), "size", _Amount("bytes"), "segment", "labels", "path"]


@click.command()
@cache_argument("path", type=CACHE_OR_KEY, metavar="[CACHE|INDEX]")
@click.argument("video", type=KEY, required=False, metavar="[KEY]")
@json_option
def ls(path: str, video: str | None, as_json: bool) -> None:
    """List the videos of a cache or an index, one in a line.

    KEY is that of one video, also alone as in "show". A line has the segment of the file and the episode of a dataset,
    if the video is of one, and all labels.

    \b
    Example:
      chordcache ls cache
    """
    from chordcache.look.video_facts import iter_listed  # the import is not for --help

    videos = iter_listed(*cache_and_video(path, video))
    for line in _json_lines(videos) if as_json else _aligned(itertools.chain([_HEADER], map(_cells, videos))):
        echo(line)


def _cells(video: ListedVideo) -> list[str]:
    return [
        printable(video.key),
        _Amount("-" if video.duration_seconds is None else f"{video.duration_seconds:.2f} s"),
        _Amount("-" if video.num_frames is None else video.num_frames),
        "-" if video.width is None else f"{video.width}x{video.height}",
        _Amount("-" if video.num_bytes is None else human_bytes(video.num_bytes)),
        printable(video.part or "-"),
        printable(shortened(video.label or "-", _MAX_LETTERS)),
        printable(video.path),
    ]


def _aligned(rows: Iterator[list[str]]) -> Iterator[str]:
    """Yield lines in columns. The last column is not padded. Amounts end below each other."""
    first = list(itertools.islice(rows, _NUM_ALIGNED))
    widths = [max(map(len, column)) for column in zip(*first, strict=True)]
    for row in itertools.chain(first, rows):
        padded = zip(row, [*widths[:-1], 0], strict=True)
        yield "  ".join(cell.rjust(width) if isinstance(cell, _Amount) else cell.ljust(width) for cell, width in padded)


def _json_lines(items: Iterable[ListedVideo]) -> Iterator[str]:
    """Yield one JSON object, a video in a line, so that memory does not grow."""
    yield json_text({**origin(), "videos": []}).removesuffix("]}")
    earlier = None
    for item in items:
        if earlier is not None:
            yield earlier + ","
        earlier = json_text(dataclasses.asdict(item))
    if earlier is not None:
        yield earlier
    yield "]}"
