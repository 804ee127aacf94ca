"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import click

import chordcache as cc
from chordcache.amounts import counted, shortened
from chordcache.arguments import absolute
from chordcache.cli.values import (
    CACHE_VARIABLE,
    CONFIG,
    FEATURES,
    FOLDER,
    NAMED_FOLDER,
    TIER,
)
from chordcache.engine.choice import Engine
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError, printable
from chordcache.verifying.findings import Leak

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Any], Any]

CONFIG_VARIABLE = "CHORDCACHE_CONFIG"
"""Environment variable of the config"""


def _together(*options: Decorator) -> Decorator:
    """Return the decorator that adds several options."""
    return lambda function: functools.reduce(lambda command, option: option(command), reversed(options), function)


def config_option(text: str) -> Decorator:
    """Return the decorator that adds ``-c``, with this help."""
    return click.option(
        "-c", "--config", type=CONFIG, multiple=True, metavar="NAME|FILE", envvar=CONFIG_VARIABLE, show_envvar=True,
        callback=lambda _ctx, _param, value: value or None,
        help=f"{text} Several are merged in order.",
    )  # fmt: skip


def _as_one(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Return the decorator that adds options, and passes on one argument for those that ``make`` takes: its result."""

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def with_one(*args: Any, **values: Any) -> Any:
            one = make(**{parameter: values.pop(parameter) for parameter in inspect.signature(make).parameters})
            return function(*args, **{name: one}, **values)

        return _together(*options)(with_one)

    return decorate


build_settings_options = _together(
    click.option(
        "--tier", "tiers", type=TIER, multiple=True, metavar="lmdb|npz|hdf5",
        callback=lambda _ctx, _param, value: value or None,
        help="Kind of file to store in; may be given several times.", show_default="as the features need it",
        envvar="CHORDCACHE_TIER", show_envvar=True,
    ),
    click.option(
        "--features", type=FEATURES, metavar="A,B", callback=lambda _ctx, _param, value: split_names(value),
        help="Build these features, such as frames,flow.",
        show_default="those of the cache and of --config, else frames",
    ),
    config_option(
        "Preset, such as flow, or YAML file. It changes only the settings that it names, see 'chordcache doctor'."
    ),
)  # fmt: skip


_CACHE_OF_OPTION = "chordcache.cli.options"
"""Key in ``click.Context.meta`` of the cache that ``-o`` names"""


def _chosen_cache(ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    """Return the cache of ``-o``, or else that of the argument. An argument beside ``-o`` is the key of a video."""
    named: str = ctx.meta.get(_CACHE_OF_OPTION, "cache")
    if value is None or ctx.get_parameter_source("output") is not click.core.ParameterSource.COMMANDLINE:
        return value or named
    if all(other.name != "video" for other in ctx.command.params):
        raise UsageError(f"-o: got '{printable(named)}' and '{printable(value)}', expected one cache")
    ctx.default_map = {"video": value}
    return named


def cache_argument(name: str = "cache", *, has_option: bool = True, **arguments: Any) -> Decorator:
    """Return the decorator that adds the argument CACHE: "cache", or the value of the variable CHORDCACHE_CACHE.

    With ``has_option``, ``-o CACHE`` is the same, as in ``build``.
    """
    arguments = {"type": FOLDER, **arguments}
    if not has_option:
        return click.argument(name, default="cache", **arguments, envvar=CACHE_VARIABLE)
    option = click.option(
        "-o", "--output", type=arguments["type"], default="cache", metavar="CACHE", expose_value=False, is_eager=True,
        callback=lambda ctx, _param, value: ctx.meta.update({_CACHE_OF_OPTION: value}),
        help="Folder of the cache, as the argument CACHE.", envvar=CACHE_VARIABLE, show_envvar=True,
    )  # fmt: skip
    return _together(click.argument(name, required=False, callback=_chosen_cache, **arguments), option)


def cache_and_video(path: str, video: str | None) -> tuple[str, str | None]:
    """Return the cache or index, and the video, that arguments name. One alone may be a video of the default cache."""
    context = click.get_current_context()
    default: str = context.meta[_CACHE_OF_OPTION]
    source_of, typed = context.get_parameter_source, click.core.ParameterSource.COMMANDLINE
    given = [name for name in ("output", "path", "video") if source_of(name) is typed]
    if len(given) == 3:
        raise UsageError("-o: got it with CACHE and KEY, expected one cache")
    if video is not None and os.path.isfile(path):
        raise UsageError(f"video: got '{printable(video)}' with an index, expected a cache. Build one.")
    is_place = path.endswith((".json", ".jsonl", ".csv")) or absolute(path).is_dir() or not absolute(default).is_dir()
    return (path, video) if given != ["path"] or is_place else (default, path)


jobs_option = click.option(
    "-j", "--jobs", type=int, metavar="N", envvar="CHORDCACHE_JOBS", show_envvar=True,
    help="Number of worker processes. -1 is one for each processor, -2 one fewer.", show_default="-1",
)  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")

_ENGINES = ("local", "inline", "dask=", "ray=")
"""Beginnings of the values of ``--engine``"""


def _engine(engine: str, jobs: int | None, num_parts: int | None) -> Engine:
    name, _, address = engine.partition("=")
    return Engine(name, address or None, jobs, num_parts)


engine_options = _as_one(
    "jobs",
    _engine,
    click.option(
        "--engine", default=Engine.name, metavar="local|inline|dask=HOST:PORT|ray=HOST:PORT",
        shell_complete=lambda _ctx, _param, start: [engine for engine in _ENGINES if engine.startswith(start)],
        help="local: processes of this machine. inline: this process itself. dask, ray: the nodes of a cluster that "
        "runs already, with the address of its scheduler or head.",
    ),
    click.option(
        "--parts", "num_parts", type=int, metavar="N",
        help="Number of parts that the nodes build.", show_default="16 for each node, or fewer",
    ),
    jobs_option,
)  # fmt: skip


limits_options = _as_one(
    "limits",
    Limits,
    click.option(
        "--stall-timeout", "stall_seconds", type=float, default=Limits.stall_seconds,
        metavar="SECONDS", help="Skip a file after this long without progress.",
        envvar="CHORDCACHE_STALL_TIMEOUT", show_envvar=True,
    ),
    click.option(
        "--file-timeout", "file_seconds", type=float, metavar="SECONDS",
        help="Skip a file that takes longer than this; 0 turns it off.",
        show_default="300, more for large and long files",
        envvar="CHORDCACHE_FILE_TIMEOUT", show_envvar=True,
    ),
    click.option(
        "--file-memory", "memory_bytes", type=int, default=(Limits.memory_bytes or 0) >> 20,
        metavar="MIB", callback=lambda _ctx, _param, value: value << 20,
        help="Skip a file that needs more memory than this.", envvar="CHORDCACHE_FILE_MEMORY", show_envvar=True,
    ),
)  # fmt: skip


def _display(quiet: bool, verbose: bool) -> Display:
    if quiet and verbose:
        raise UsageError("--quiet: got --verbose too, expected one of the two. Leave one out.")
    return Display(progress=not quiet, verbose=verbose)


display_options = _as_one(
    "display",
    _display,
    click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary, but failures and errors."),
    click.option("-v", "--verbose", is_flag=True, help="Name each failure with its cause as it happens."),
)


def pairs_of(
    form: str, *, may_be_empty: bool = True
) -> Callable[[click.Context, click.Parameter, Sequence[str]], Mapping[str, str]]:
    """Return the callback of an option whose values have the form NAME=VALUE. It returns a mapping of them."""

    def parse(_ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> Mapping[str, str]:
        pairs = {}
        for text in values:
            name, equals, value = text.partition("=")
            if not name or not equals or not (value or may_be_empty):
                raise UsageError(f"{param.opts[0]}: got '{printable(text)}', expected {form}")
            if name in pairs:
                raise UsageError(f"{param.opts[0]}: got '{printable(name)}' twice, expected one value for it")
            pairs[name] = value
        return pairs

    return parse


where_option = click.option(
    "--where", multiple=True, metavar="COLUMN=VALUE", callback=pairs_of("COLUMN=VALUE"),
    help="Keep only items with this value, such as split=train; may be given several times.",
)  # fmt: skip


def _list_options(
    video_template: str | None, columns: Mapping[str, str], ignore: Sequence[str], header: str | None
) -> Any:
    from chordcache.index.lists.items import ListOptions  # --help does not need it

    return ListOptions(video_template, columns, ignore, split_names(header) or ())


list_options = _as_one(
    "options",
    _list_options,
    click.option(
        "--videos", type=NAMED_FOLDER, multiple=True, metavar="DIR|NAME=DIR",
        help="Folder where the paths of the list begin. Name further folders for absolute paths.",
        show_default="the list's folder",
    ),
    click.option(
        "--video-template", metavar="TEMPLATE",
        help="Path of a row's video, with columns in braces, such as '{split}/{id}.mp4'. '.*' at the end is any "
        "suffix.",
    ),
    click.option(
        "--column", "columns", multiple=True, metavar="MEANING=NAME", callback=pairs_of("MEANING=NAME"),
        help="Column of a list of the format csv that has the path, label, caption, start, end, duration, start_frame, "
        "end_frame or segment of an item.",
    ),
    click.option(
        "--ignore", multiple=True, metavar="COLUMN", help="Column to leave out; may be given several times.",
    ),
    click.option(
        "--header", metavar="NAMES",
        help="Columns of a CSV file without a header row, such as 'id,start,end,labels'.",
    ),
    where_option,
)  # fmt: skip
"""Options of a list but for its format. The command gets ``videos``, ``where`` and ``options``"""


roots_option = click.option(
    "--root", "roots", type=NAMED_FOLDER, multiple=True, metavar="NAME=PATH",
    callback=pairs_of("NAME=PATH", may_be_empty=False),
    help="Folder where the videos of root NAME are now, if they moved; may be given several times.",
)  # fmt: skip


def split_names(value: str | None) -> Sequence[str] | None:
    """Split names at commas."""
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def index_effects(losses: Mapping[str, int], num_unnamed: int) -> str:
    """Return the part of a summary about statements of a cache that an index changes, and videos that it leaves out."""
    parts = [f", {name.removeprefix('num_').replace('_', ' ')} {count}" for name, count in sorted(losses.items())]
    if num_unnamed:
        parts.append(f"; the index does not name {counted(num_unnamed, 'cached video')}, which --prune drops")
    return "".join(parts)


def skipped_frames(num_frames: int) -> str:
    """Return the part of a summary about frames at the start of streams that cannot be decoded."""
    return f", {counted(num_frames, 'frame')} before a first keyframe skipped" if num_frames else ""


splits_option = click.option(
    "--splits", nargs=2, metavar="TRAIN VAL",
    help="Also find videos of two splits that show the same seconds, though one is compressed, scaled, trimmed or "
    "mirrored. A split is a file of names, or COLUMN=VALUE. The same one twice finds copies in it.",
)  # fmt: skip


def keys_of_splits(cache: str, splits: tuple[str, str] | None) -> dict[str, list[str]]:
    """Return the keys of the videos of both splits: those in a file, or those with a value in a column."""
    return {name: _keys_of(cache, split) for name, split in zip(("train", "val"), splits or (), strict=False)}


def _keys_of(cache: str, split: str) -> list[str]:
    from chordcache.read.selection import select_keys  # --help does not need it

    name, is_column, value = split.partition("=")
    with cc.open_cache(cache) as opened:
        if not is_column or os.path.lexists(split):
            return select_keys(opened, split)
        values = {video.key: video.label if name == "label" else video.extra.get(name) for video in opened}
    keys = [key for key, known in values.items() if known is not None and str(known) == value]
    if not keys:
        some = ", ".join(sorted({str(known) for known in values.values() if known is not None})) or "no value"
        what = f"got '{split}', expected a split file or COLUMN=VALUE. '{name}' has {shortened(some, 200)}."
        raise UsageError(f"--splits: {printable(what)}")
    return keys


def leaks_of_splits(cache: str, keys: Mapping[str, list[str]]) -> list[Leak]:
    """Return the pairs of videos of two splits that show the same seconds, or copies in one if both are equal."""
    if not keys:
        return []
    train, val = (cc.videos.cached(cache, keys[name]) for name in ("train", "val"))
    return cc.leaks(train, None if keys["train"] == keys["val"] else val)
