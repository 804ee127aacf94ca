"""Commands below "Look at it": ``info``, ``ls``, ``show``, ``report``, ``bench``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

import chordcache as cc
from chordcache.amounts import counted, exact_duration, first_few, human_bytes, shortened
from chordcache.cli.options import (
    cache_and_video,
    cache_argument,
    json_option,
    keys_of_splits,
    leaks_of_splits,
    roots_option,
    splits_option,
)
from chordcache.cli.output import echo, echo_result, json_text, origin
from chordcache.cli.values import CACHE_OR_KEY, KEY, PATH, default_cache
from chordcache.errors import DamageError, UsageError, printable

if TYPE_CHECKING:  # --help does not need what these load
    from chordcache.look.draw_sheet import Sheet
    from chordcache.look.video_facts import ListedVideo


_MAX_ITEMS = 20
"""Number of labels or of other items that are listed"""

_MAX_LETTERS = 300
"""Number of letters of a message or a label"""


@click.command()
@cache_argument("path", type=CACHE_OR_KEY, metavar="[CACHE|INDEX]")
@click.argument("video", type=KEY, required=False, metavar="[KEY]")
@click.option("--problems", is_flag=True, help="Print every failure with its stage, cause and message, and what to do.")
@json_option
def info(path: str, video: str | None, problems: bool, as_json: bool) -> None:
    """Show what a cache, an index or one video contains.

    The first argument is a cache folder or an index file. The second is the key of a video, the beginning of a key, or
    the path of the video. KEY alone is of a video of the default cache.

    \b
    Example:
      chordcache info cache
    """
    path, video = cache_and_video(path, video)
    if problems and video is not None:
        raise UsageError("--problems: got it with KEY, expected one of them")
    if problems:
        _problems(path, as_json)
    elif video is not None:
        _video(path, video, as_json)
    else:
        from chordcache.look.summary import summarize

        facts = summarize(path)
        echo_result(facts, "\n".join(_summary_lines(facts)), as_json)


def _video(path: str, video: str, as_json: bool) -> None:
    from chordcache.look.video_facts import describe_video, rows_of_facts
    from chordcache.read.cache import find_video  # the imports are not for --help

    with cc.open_cache(path) as cache:
        facts = describe_video(find_video(cache, video))
    echo_result(facts, "\n".join(_line(name, text) for name, text in rows_of_facts(facts)), as_json)


def _problems(path: str, as_json: bool) -> None:
    from chordcache.look.problems import iter_problems  # the import is not for --help

    problems = list(iter_problems(path))
    lines = []
    for problem in problems:
        lines.append(f"{printable(problem.path)}")
        lines.append(f"  {problem.kind}, stage {printable(problem.stage)}, cause {printable(problem.cause)}")
        lines.append(f"  {printable(shortened(problem.message, _MAX_LETTERS))}")
        if problem.remedy:
            lines.append(f"  {printable(problem.remedy)}")
    lines.append(counted(len(problems), "problem"))
    echo_result({"problems": [dataclasses.asdict(problem) for problem in problems]}, "\n".join(lines), as_json)


def _summary_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about a cache or an index. ``facts`` is the result of ``summarize``."""
    for name, value in facts.items():
        if name == "labels":
            for text in first_few([f"{shortened(label, 100)} {count}" for label, count in value.items()], _MAX_ITEMS):
                yield _line(name, text)
        elif name != "config" and value != {}:  # for machines: chordcache.json has the config too
            yield _line(name.removeprefix("num_").removesuffix("_seconds"), _summary_text(name, value))


def _summary_text(name: str, value: Any) -> str:
    if name == "num_bytes":
        return human_bytes(value)
    if name == "duration_seconds":
        return exact_duration(value)
    if not isinstance(value, dict):
        return str(value)
    if name == "bytes":
        parts = [f"{key} {human_bytes(size)}" for key, size in value.items()]
        return ", ".join([*parts, f"all {human_bytes(sum(value.values()))}"] if len(parts) > 1 else parts)
    items = (
        f"{shortened(key, 100)} {' '.join(v) if isinstance(v, list) else printable(str(v))}" for key, v in value.items()
    )
    return ", ".join(first_few(list(items), _MAX_ITEMS))


def _line(name: str, text: str) -> str:
    return f"{printable(shortened(name.replace('_', ' '), 60)):20} {printable(text)}"


_NUM_ALIGNED = 500
"""Number of lines at the start whose widths set those of the columns. All lines would have to wait for the last"""


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


Span: TypeAlias = tuple[float | None, float | None]
"""Start and stop, None for an end of the video"""


def _parse_span(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Span:
    try:
        start, stop = (float(time) if time else None for time in (value or ":").split(":"))
    except ValueError:  # also without a colon
        raise UsageError(f"--seconds: got '{value}', expected START:STOP such as 1.5:4, or START: or :STOP") from None
    return start, stop


@click.command()
@click.argument("cache", type=CACHE_OR_KEY, required=False, metavar="[CACHE]")
@click.argument("video", type=KEY, required=False, metavar="KEY|PATH")
@click.option(
    "-o", "--output", type=PATH, metavar="FILE", help="PNG file.", show_default="KEY.png in the working folder"
)
@click.option(
    "--seconds", metavar="START:STOP", callback=_parse_span, show_default="the whole video",
    help="Part to draw, in seconds of the source, such as 1.5:4 or :4.",
)  # fmt: skip
@json_option
def show(cache: str | None, video: str | None, output: str | None, seconds: Span, as_json: bool) -> None:
    """Draw one video as a PNG: frames, flow, motion and sound on one time axis.

    The beginning of a key is enough, or the path of the video. CACHE is the folder of a cache.  [env var:
    CHORDCACHE_CACHE; default: cache]

    \b
    Example:
      chordcache show bikes -o sheet.png
    """
    if video is None:
        cache, video = default_cache(), cache
    if cache is None or video is None:
        raise UsageError("video: got nothing, expected a key or a path")
    target, sheet = _draw(cache, video, output, seconds)
    facts = {"key": sheet.key, "drawn": list(sheet.rows), "absent": sheet.absent, "damage": sheet.damage}
    echo_result({"path": str(target), **facts}, printable(target), as_json)
    if sheet.damage:
        raise DamageError("; ".join(f"{name}: {message}" for name, message in sheet.damage.items()))


def _draw(cache: str, video: str, output: str | None, seconds: Span) -> tuple[Path, Sheet]:
    from chordcache.read.cache import (
        find_video,
        open_cache,  # the imports are not for --help
    )
    from chordcache.storage.layout import check_output

    with open_cache(cache) as opened:
        cached = find_video(opened, video)
        target = Path(output or f"{cached.key}.png")
        check_output("output", target)
        try:
            from chordcache.look import draw_sheet  # it loads OpenCV

            sheet = draw_sheet.show(cached, seconds=seconds)
        except ImportError as error:
            raise UsageError(str(error)) from None
    return sheet.save(target), sheet


@click.command()
@cache_argument("path", has_option=False, type=PATH, metavar="[CACHE|INDEX]")
@click.option("-o", "--output", type=PATH, default="report.html", metavar="FILE",
              help="The page. It cannot be in the cache.")  # fmt: skip
@click.option("--videos", "num_videos", type=int, default=1000, metavar="N",
              help="Show at most so many videos, 12 kB each. Figures are of all.")  # fmt: skip
@splits_option
@json_option
def report(path: str, splits: tuple[str, str] | None, as_json: bool, **options: Any) -> None:
    """Write a page that shows all videos of a cache, and what is wrong with them.

    The page is one HTML file that works offline. The argument is the folder of a cache, or an index file, whose page
    has no pictures.  [env var: CHORDCACHE_CACHE; default: cache]

    \b
    Example:
      chordcache report cache -o report.html
    """
    leaks = leaks_of_splits(path, keys_of_splits(path, splits))
    result = cc.report(path, progress=True, leaks=leaks, **options)
    shown = "" if result.num_shown == result.num_videos else f"{result.num_shown:,} of "
    pictures = "" if result.has_pictures else ", no pictures"
    line = (
        f"{printable(result.path)}: {shown}{counted(result.num_videos, 'video')}{pictures}, "
        f"{result.num_bytes / 1e6:.1f} MB; {counted(result.num_failures, 'failure')}, "
        f"{counted(result.num_findings, 'finding')}"
        f"{f', {result.num_leaks} shared by the splits' if splits else ''}"
    )
    echo_result(result, line, as_json)


@click.command()
@cache_argument()
@click.option("-j", "--jobs", "workers", type=int, default=2, metavar="N",
              help="Processes of each DataLoader, and threads of the ClipLoader.")  # fmt: skip
@roots_option
@json_option
def bench(cache: str, workers: int, roots: Any, as_json: bool) -> None:
    """Measure how fast the cache feeds a training job, against reading the videos themselves.

    All ways to read make the same batches of 8 clips of 16 frames, 4 apart, cut to 224x224, each in its own process, in
    turn. Nothing in the cache changes. It takes about a minute.

    \b
    Example:
      chordcache bench cache --jobs 4
    """
    # Not before: --help does not need what it loads
    from chordcache.tools.bench import measurement
    from chordcache.tools.bench.result import BenchOptions, as_text

    result = measurement.bench(cache, options=BenchOptions(workers=workers), roots=roots, progress=True)
    echo_result({**dataclasses.asdict(result), "verdict": result.verdict}, as_text(result), as_json)
