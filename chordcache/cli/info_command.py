"""``chordcache info``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import click

import chordcache as cc
from chordcache.amounts import counted, exact_duration, first_few, human_bytes, shortened
from chordcache.cli.options import cache_and_video, cache_argument, json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import CACHE_OR_KEY, KEY
from chordcache.errors import UsageError, printable

_MAX_ITEMS = 20
"""Number of labels or of other items that are listed"""

_MAX_LETTERS = 400
"""Number of letters of a message"""


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
        facts = cc.summarize(path)
        echo_result(facts, "\n".join(_summary_lines(facts)), as_json)


def _video(path: str, video: str, as_json: bool) -> None:
    from chordcache.look.video_facts import describe_video, rows_of_facts
    from chordcache.read.find_video import find_video  # the imports are not for --help

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
