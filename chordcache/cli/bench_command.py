"""``chordcache bench``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import CONFIG_VARIABLE, PATH, cache_argument, echo_json, json_option, roots_option
from chordcache.cli.values import CONFIG, variable_option, words
from chordcache.errors import UsageError, printable

Function = TypeVar("Function", bound=Callable[..., Any])


def _numbers(_ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Split numbers at commas."""
    try:
        return tuple(int(number) for number in value.split(","))
    except ValueError:
        raise UsageError(f"--{param.name}: got '{value}', expected numbers with commas, such as 0,2,4") from None


_OPTIONS = (
    click.option("--batch-size", type=int, default=8, show_default=True, help="Clips in a batch."),
    click.option("--num-frames", type=int, default=16, show_default=True, help="Frames in a clip."),
    click.option("--stride", type=int, default=4, show_default=True, help="Distance of the frames of a clip."),
    click.option("--size", type=int, default=224, show_default=True, metavar="PIXELS",
                 help="Side of the square center crop."),
    click.option("--workers", default="0,2", show_default=True, callback=_numbers, metavar="N,N",
                 help="Numbers of worker processes of a DataLoader to try."),
    click.option("--prefetch", default="2", show_default=True, callback=_numbers, metavar="N,N",
                 help="Numbers of batches that are made ahead to try."),
    click.option("--threads", default="2", show_default=True, callback=_numbers, metavar="N,N",
                 help="Numbers of threads of a ClipLoader to try."),
    click.option("--step-ms", type=float, default=50.0, show_default=True, metavar="MS",
                 help="Duration of the training step whose waiting is measured."),
    click.option("--seconds", type=float, default=5.0, show_default=True,
                 help="Time to measure each row for, without its start."),
    click.option("--cold", is_flag=True, help="Also measure with files that are not in memory."),
)  # fmt: skip
"""Options that are fields of ``BenchOptions``, which checks their bounds."""


def _measurement_options(function: Function) -> Function:
    """Add the options of the measurement."""
    command: Any = function
    for option in reversed(_OPTIONS):
        command = option(command)
    return cast(Function, command)


@click.command(cls=GroupedCommand)
@cache_argument("path", type=PATH, metavar="[CACHE|INDEX]")
@_measurement_options
@click.option("--tier", "tiers", type=words("lmdb", "hdf5"), multiple=True, default=("lmdb",), show_default=True,
              metavar="lmdb|hdf5",
              help="Kind of file of the temporary cache of an INDEX; may be given several times.")  # fmt: skip
@click.option("-c", "--config", type=CONFIG, metavar="NAME|FILE", **variable_option(CONFIG_VARIABLE),
              help="Preset or YAML file: config of the temporary cache of an INDEX.")  # fmt: skip
@roots_option
@json_option
@click.option("--md", "markdown", type=PATH, metavar="FILE", help="Also write the result as Markdown.")
@click.option("--html", type=PATH, metavar="FILE", help="Also write the result as an HTML page with a plot.")
def bench(
    path: str,
    tiers: Sequence[str],
    config: str | None,
    roots: Any,
    as_json: bool,
    markdown: str | None,
    html: str | None,
    **options: Any,
) -> None:
    """Measure how fast the cache feeds a training job, against reading the videos themselves.

    The argument is a cache folder, or an index file, of which a small temporary cache is built. By default, it is the
    value of the variable CHORDCACHE_CACHE, or else the folder cache. All ways to read make the same clips, each in its
    own process, in turn. Nothing in the cache changes. The defaults take about two minutes.

    \b
    Example:
      chordcache bench cache --workers 0,2,4 --prefetch 2,4
    """
    from chordcache.tools import bench as tool  # not before: --help does not need what it loads

    for page in filter(None, (markdown, html)):
        _check_folder(page)
    result = tool.bench(path, options=tool.BenchOptions(**options), tiers=tiers, config=config, roots=roots)
    if markdown is not None:
        _write(markdown, tool.as_markdown(result))
    if html is not None:
        _write(html, tool.as_html(result))
    if as_json:
        echo_json(result.to_json())
    else:
        click.echo(tool.as_text(result))


def _check_folder(path: str) -> None:
    """Raise ``UsageError`` before minutes of work whose result could not be written."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or os.path.isdir(path):
        raise UsageError(f"cannot write '{printable(path)}': got a path without a folder, or a folder. Give a file.")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write '{printable(path)}': {error}. Give another path.") from None
