"""``chordcache info``."""

from __future__ import annotations

import click

import chordcache as cc
from chordcache.cli.options import PATH, cache_argument, echo_json, json_option
from chordcache.errors import printable


@click.command()
@cache_argument("path", type=PATH, metavar="[CACHE|INDEX]")
@json_option
def info(path: str, as_json: bool) -> None:
    """Show what a cache or an index contains.

    The argument is a cache folder or an index file. By default, it is the value of the variable CHORDCACHE_CACHE, or
    else the folder cache.

    \b
    Example:
      chordcache info cache
    """
    facts = cc.summarize(path)
    if as_json:
        echo_json(facts)
        return
    facts.pop("config", None)  # for machines: chordcache.json has it too
    for name, value in facts.items():
        if value == {}:
            continue
        text = (
            ", ".join(f"{k} {' '.join(v) if isinstance(v, list) else v}" for k, v in value.items())
            if isinstance(value, dict)
            else str(value)
        )
        click.echo(f"{name.replace('_', ' '):20} {printable(text)}")
