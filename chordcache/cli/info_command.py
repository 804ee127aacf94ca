"""``chordcache info``."""

from __future__ import annotations

import dataclasses
import os

import click

import chordcache as cc
from chordcache.cli.info_text import problem_lines, summary_lines, video_lines
from chordcache.cli.options import PATH, cache_argument, echo_json, json_option
from chordcache.cli.output import echo
from chordcache.cli.values import KEY
from chordcache.errors import UsageError


@click.command()
@cache_argument("path", type=PATH, metavar="[CACHE|INDEX]")
@click.argument("video", type=KEY, required=False, metavar="[KEY]")
@click.option("--problems", is_flag=True, help="Every failure with its stage, cause and message, and what to do.")
@json_option
def info(path: str, video: str | None, problems: bool, as_json: bool) -> None:
    """Show what a cache, an index or one video contains.

    The first argument is a cache folder or an index file. By default, it is the value of the variable CHORDCACHE_CACHE,
    or else the folder cache. The second is the key of a video, the beginning of a key, or the path of the video.

    \b
    Example:
      chordcache info cache
    """
    if problems and video is None:
        _problems(path, as_json)
        return
    if problems:
        raise UsageError("--problems: got it with KEY, expected one of them")
    facts = cc.summarize(path) if video is None else _video(path, video)
    if as_json:
        echo_json(facts)
    else:
        echo("\n".join(summary_lines(facts) if video is None else video_lines(facts)))


def _video(path: str, video: str) -> dict[str, object]:
    from chordcache.look.video_facts import describe_video
    from chordcache.read.find_video import find_video  # the imports are not for --help

    if os.path.isfile(path):
        raise UsageError(f"video: got '{video}' with an index, expected a cache. Build one, or read the index.")
    with cc.open_cache(path) as cache:
        return describe_video(find_video(cache, video))


def _problems(path: str, as_json: bool) -> None:
    from chordcache.look.problems import iter_problems  # the import is not for --help

    problems = list(iter_problems(path, with_absent=False))
    if as_json:
        echo_json([dataclasses.asdict(problem) for problem in problems])
        return
    for problem in problems:
        echo("\n".join(problem_lines(problem)))
    echo(f"{len(problems):,} problem{'s' * (len(problems) != 1)}")
