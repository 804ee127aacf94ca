"""Options that several commands share."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from chordcache.cli.values import CONFIG, FEATURES, FOLDER, NAMED_FOLDER, TIER, variable_argument, variable_option
from chordcache.engine.choice import ENGINES, Engine
from chordcache.engine.display import Display
from chordcache.engine.limits import Limits
from chordcache.errors import UsageError, printable

if TYPE_CHECKING:  # --help does not need what they load
    from chordcache.records import RunSummary

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Any], Any]

CACHE_VARIABLE = "CHORDCACHE_CACHE"
CONFIG_VARIABLE = "CHORDCACHE_CONFIG"
"""Environment variables of the two paths that most commands take"""


def _together(*options: Decorator) -> Decorator:
    """Return the decorator that adds several options."""
    return lambda function: functools.reduce(lambda command, option: option(command), reversed(options), function)


def config_option(text: str) -> Decorator:
    """Return the decorator that adds ``-c``, with this help."""
    variable = variable_option(CONFIG_VARIABLE)
    return click.option("-c", "--config", type=CONFIG, metavar="NAME|FILE", help=text, **variable)


def _as_one(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Return the decorator that adds options, and passes on one argument: what ``make`` returns for their values."""

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
        help="Kind of file to store in; may be given several times.  [default: as the features need it]",
        **variable_option("CHORDCACHE_TIER"),
    ),
    click.option(
        "--features", type=FEATURES, metavar="A,B", callback=lambda _ctx, _param, value: split_names(value),
        help="Build these features, such as frames,flow.  [default: those of the cache and of --config, else frames]",
    ),
    config_option(
        "Preset, such as flow, or YAML file. It changes only the settings that it names. See 'chordcache config'."
    ),
)  # fmt: skip


def cache_argument(name: str = "cache", **arguments: Any) -> Callable[[Function], Function]:
    """Return the decorator that adds the argument CACHE: "cache", or the value of the variable CHORDCACHE_CACHE."""
    arguments = {"type": FOLDER, "default": "cache", **arguments, **variable_argument(CACHE_VARIABLE)}
    return click.argument(name, **arguments)


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def size_option(option: str, name: str, **arguments: Any) -> Callable[[Function], Function]:
    """Return the decorator that adds an option of a size in bytes, as text such as 400GB, 1.5TiB or 1000000."""

    def parse(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]I?)?B?", value.strip().upper())
        if not match:
            raise UsageError(f"{option}: got '{value}', expected a size such as 400GB or 1.5TiB")
        return float(match[1]) * _UNITS[match[2] or ""]

    return click.option(option, name, metavar="SIZE", callback=parse, **arguments)


jobs_option = click.option(
    "-j", "--jobs", type=int, metavar="N", **variable_option("CHORDCACHE_JOBS"),
    help="Number of worker processes; -1: one for each processor, -2: one fewer.  [default: -1]",
)  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")

wait_option = click.option(
    "--wait", is_flag=True, help="Wait while another process writes to the cache, instead of ending with exit code 11."
)


engine_options = _as_one(
    "jobs",
    lambda engine, address, jobs, num_parts: Engine(engine, address, jobs, num_parts),
    click.option(
        "--engine", type=click.Choice(ENGINES), default=Engine.name, show_default=True,
        help="Processes that do the work: those of this machine, or this process itself. dask and ray start parts on "
        "the nodes of a cluster that runs already.",
    ),
    click.option("--address", metavar="HOST:PORT", help="Scheduler of Dask or head of Ray, for --engine dask or ray."),
    click.option(
        "--parts", "num_parts", type=int, metavar="N",
        help="Number of parts that the nodes build.  [default: 16 for each node, or fewer]",
    ),
    jobs_option,
)  # fmt: skip


limits_options = _as_one(
    "limits",
    Limits,
    click.option(
        "--stall-timeout", "stall_seconds", type=float, default=Limits.stall_seconds, show_default=True,
        metavar="SECONDS", help="Skip a file after this long without progress.",
        **variable_option("CHORDCACHE_STALL_TIMEOUT"),
    ),
    click.option(
        "--file-timeout", "file_seconds", type=float, metavar="SECONDS",
        help="Skip a file that takes longer than this; 0 turns it off.  [default: 300, more for large and long files]",
        **variable_option("CHORDCACHE_FILE_TIMEOUT"),
    ),
    click.option(
        "--file-memory", "memory_bytes", type=int, default=(Limits.memory_bytes or 0) >> 20, show_default=True,
        metavar="MIB", callback=lambda _ctx, _param, value: value << 20,
        help="Skip a file that needs more memory than this.", **variable_option("CHORDCACHE_FILE_MEMORY"),
    ),
    click.option(
        "--retries", type=int, default=Limits.retries, show_default=True, metavar="N",
        help="Number of further attempts if a file failed because of time, memory or a disk.",
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


def pairs_of(form: str) -> Callable[[click.Context, click.Parameter, Sequence[str]], Mapping[str, str]]:
    """Return the callback of an option whose values have the form NAME=VALUE. It returns a mapping of them."""

    def parse(_ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> Mapping[str, str]:
        pairs = {}
        for text in values:
            name, equals, value = text.partition("=")
            if not name or not equals:
                raise UsageError(f"{param.opts[0]}: got '{printable(text)}', expected {form}")
            pairs[name] = value
        return pairs

    return parse


def _parse_roots(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> Mapping[str, str]:
    roots = pairs_of("NAME=PATH")(ctx, param, values)
    for name, path in roots.items():
        if not path:
            raise UsageError(f"--root: got '{printable(name)}=', expected NAME=PATH")
    return {name: os.path.abspath(path) for name, path in roots.items()}


roots_option = click.option(
    "--root", "roots", type=NAMED_FOLDER, multiple=True, metavar="NAME=PATH", callback=_parse_roots,
    help="Folder where the videos of root NAME are now, if they moved; may be given several times.",
)  # fmt: skip


def split_names(value: str | None) -> Sequence[str] | None:
    """Split names at commas."""
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def skipped_frames(summary: RunSummary) -> str:
    """Return the part of a summary about frames at the start of streams that cannot be decoded."""
    num_skipped = summary.num_frames_skipped
    return f", {num_skipped} frame{'s' * (num_skipped != 1)} before a first keyframe skipped" if num_skipped else ""
