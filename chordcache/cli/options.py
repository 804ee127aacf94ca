"""Options that several commands share."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from chordcache.errors import UsageError
from chordcache.records import RunSummary

Function = TypeVar("Function", bound=Callable[..., Any])

PATH = click.STRING
"""Not ``click.Path``: that looks at the file, and fails on a name that no file can have. The public functions have a
message and an exit code for both."""


def jobs_option(function: Function) -> Function:
    """``-j N``."""
    return click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes.  [default: one per processor]")(
        function
    )


def json_option(function: Function) -> Function:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")(
        function
    )


def roots_option(function: Function) -> Function:
    """``--root NAME=PATH``, several times."""
    return click.option(
        "--root", "roots", multiple=True, metavar="NAME=PATH", callback=_parse_roots, help="Where a root's data is now."
    )(function)


def wait_option(function: Function) -> Function:
    """``--wait``."""
    return click.option("--wait", is_flag=True, help="Wait while another process writes to the cache.")(function)


def _parse_roots(_ctx: click.Context, _param: click.Parameter, values: Sequence[str]) -> Mapping[str, str]:
    roots = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not name or not equals or not path:
            raise UsageError(f"--root: got '{value}', must be NAME=PATH")
        roots[name] = os.path.abspath(path)
    return roots


def split_names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Sequence[str] | None:
    """Names between commas."""
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def echo_json(data: Any) -> None:
    """Print a result for machines."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))


def echo_summary(summary: RunSummary, line: str, as_json: bool) -> None:
    """Print what a run did: JSON or one line on standard output."""
    if as_json:
        echo_json(dataclasses.asdict(summary))
    else:
        click.echo(line)
