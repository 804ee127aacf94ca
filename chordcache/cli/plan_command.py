"""``chordcache plan``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

import click

from chordcache.building.build_options import BuildOptions
from chordcache.choices import ON_DAMAGE, PLAN_FILES
from chordcache.cli.commands import GroupedCommand
from chordcache.cli.options import (
    PATH,
    build_settings_options,
    echo_json,
    jobs_option,
    json_option,
    limits_options,
    roots_option,
)
from chordcache.cli.values import FOLDER, Choice
from chordcache.errors import UsageError, printable

if TYPE_CHECKING:  # --help does not need what they load
    from chordcache.tools.plan import Plan, PlanOptions
    from chordcache.tools.plan_estimate import Estimate

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}

_BUILD_OPTIONS = ("on_damage", "follow_symlinks", "limits")
_PLAN_OPTIONS = ("num_sampled", "seed", "scratch", "budget_bytes", "budget_hours")


def _parse_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """Return bytes of text such as 400GB, 1.5TiB or 1000000."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([KMGT]I?)?B?", value.strip().upper())
    if not match:
        raise UsageError(f"--budget: got '{value}', expected a size such as 400GB or 1.5TiB")
    return float(match[1]) * _UNITS[match[2] or ""]


@click.command(cls=GroupedCommand)
@click.argument("index", type=PATH, default="index.json")
@build_settings_options
@click.option(
    "--budget", "budget_bytes", metavar="SIZE", callback=_parse_size,
    help="Size that the cache may have, such as 400GB.",
)  # fmt: skip
@click.option("--hours", "budget_hours", type=float, metavar="H", help="Time that the build may take.")
@click.option(
    "--sample", "num_sampled", type=click.IntRange(1), default=PLAN_FILES, show_default=True, metavar="N",
    help="Number of files to build, at most 30 seconds of each.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Seed of the choice of these files.")
@click.option(
    "--scratch", type=FOLDER, metavar="DIR", help="Folder for temporary files.  [default: that of the system]"
)
@click.option("--follow-symlinks", is_flag=True, help="Read videos behind symbolic links that lead out of their root.")
@click.option("--on-damage", type=Choice(ON_DAMAGE), help="As in build.")
@roots_option
@jobs_option
@limits_options
@json_option
def plan(index: str, as_json: bool, **arguments: Any) -> None:
    """Estimate the size and the time of a build.

    A sample of INDEX is built in a temporary folder. -j is the number of workers that the build will have. Ranges are
    from the 10th to the 90th percentile. Where they exceed --budget or --hours, the presets that save something are
    listed.

    Exit code 0: the settings fit; 7: they do not.

    \b
    Example:
      chordcache plan index.json --tier lmdb --budget 400GB --hours 24 -j 32
    """
    from chordcache.tools.plan import PlanOptions, plan_build

    build = BuildOptions(**{name: arguments.pop(name) for name in _BUILD_OPTIONS})
    options = PlanOptions(build=build, **{name: arguments.pop(name) for name in _PLAN_OPTIONS})
    found = plan_build(index, options=options, progress=True, **arguments)
    if as_json:
        echo_json({**asdict(found), "exit_code": found.exit_code})
    else:
        click.echo("\n".join(_lines(found, options)))
    click.get_current_context().exit(found.exit_code)


def _lines(found: Plan, options: PlanOptions) -> list[str]:
    left_out = f", {found.num_unreadable} unreadable left out" if found.num_unreadable else ""
    failed = f", {found.num_failed} of them failed" if found.num_failed else ""
    lines = [f"{found.num_videos} videos{left_out}; sample: {found.num_sampled} files{failed}"]
    lines += [f"  failed: {printable(message)}" for message in found.failures[:3]]
    rows = [(f"{size.tier} {size.features}", _size(size.num_bytes)) for size in found.sizes]
    rows += [
        ("all files", _size(found.num_bytes)),
        ("CPU time", _time(found.cpu_hours)),
        (f"time, {found.jobs} workers", _time(found.hours)),
        ("peak memory", _size(found.memory_bytes)),
        ("inodes", _range(found.inodes, 1, "")),
    ]
    lines += [f"{name:26} {text}" for name, text in rows]
    if found.jobs > found.num_processors:
        lines.append(f"  note: the time is that of {found.jobs} processors; this machine has {found.num_processors}")
    return lines + _verdict(found, options)


def _verdict(found: Plan, options: PlanOptions) -> list[str]:
    """Return the lines about the budgets."""
    budgets = [f"{_size_of(options.budget_bytes)}"] if options.budget_bytes is not None else []
    budgets += [f"{options.budget_hours:g} h"] if options.budget_hours is not None else []
    if not budgets:
        return []
    lines = [f"{' and '.join(budgets)}: these settings {'fit' if found.fits else 'do not fit'}"]
    if options.budget_hours is not None and found.hours.high > options.budget_hours:
        num_jobs = found.jobs_for(options.budget_hours)
        lines.append(f"  {options.budget_hours:g} h take {num_jobs} workers on {num_jobs} processors")
    for other in found.alternatives:
        fits = "fits" if other.fits else "too much"
        lines.append(f"  {fits:8} {_size(other.num_bytes):33} {_time(other.hours):33} -c {other.preset}")
    if not found.fits and not any(other.fits for other in found.alternatives):
        lines.append("no preset fits; a smaller frames.short_side or frames.fps makes all features smaller")
    return lines


_SIZES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
_TIMES = {"h": 3600.0, "min": 60.0, "s": 1.0}


def _unit(value: float, units: Mapping[str, float]) -> tuple[float, str]:
    """Return the largest unit that a value has at least one of, or the smallest unit."""
    name = next((name for name, size in units.items() if value >= size), list(units)[-1])
    return units[name], name


def _size_of(num_bytes: float) -> str:
    unit, name = _unit(num_bytes, _SIZES)
    return f"{num_bytes / unit:.3g} {name}"


def _size(value: Estimate) -> str:
    return _range(value, *_unit(value.value, _SIZES))


def _time(hours: Estimate) -> str:
    seconds = hours.scaled(3600)
    return _range(seconds, *_unit(seconds.value, _TIMES))


def _range(value: Estimate, unit: float, name: str) -> str:
    numbers = [f"{number / unit:.3g}" if number < 1000 * unit else f"{number / unit:.0f}" for number in astuple(value)]
    return f"{f'{numbers[0]} {name}':12} {f'({numbers[1]} to {numbers[2]})':20}".rstrip()
