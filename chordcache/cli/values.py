"""Types of arguments and options. A shell completes their values, and an error names the variable of a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from chordcache.arguments import absolute
from chordcache.errors import ChordcacheError, printable

CACHE_VARIABLE = "CHORDCACHE_CACHE"
"""Environment variable of the cache"""

Completer = Callable[[click.Context, str], Sequence[CompletionItem]]
"""Function of the words before and the beginning of a word, which returns the words that it may become"""


class Completed(click.types.StringParamType):
    """Text whose end a shell completes. All values but URLs are valid, since the public functions check them.

    With ``takes_urls``, so are URLs of object stores.

    ``click.Path`` is not used. It fails on a name that no file can have, with another exit code.
    """

    def __init__(self, completer: Completer, *, takes_urls: bool = False, may_have_spaces: bool = False) -> None:
        self.completer, self._takes_urls, self._may_have_spaces = completer, takes_urls, may_have_spaces

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text. Raises ``UsageError`` for a URL, which would become a relative path."""
        if param is not None and "://" in str(value):
            from chordcache.object_stores.client import object_path  # --help does not need it
            from chordcache.storage.layout import check_local

            if not (self._takes_urls and object_path(str(value).rpartition("=")[2])):
                check_local(str(param.name), value)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that the beginning of a word may become."""
        return list(self.completer(ctx, incomplete))

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Split the value of a variable at spaces and commas, for an option that may be given several times."""
        return [rv] if self._may_have_spaces else rv.replace(",", " ").split()


def _items(kind: str, *values: str) -> list[CompletionItem]:
    return [CompletionItem(value, type=kind) for value in values]


def _labels(_ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    words = ("dir",) if "dir".startswith(incomplete) else ()
    return _items("file", incomplete) + _items("plain", *words)


def _tiers(_ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    from chordcache.storage.artefacts.tiers import TIERS

    return _items("plain", *(tier for tier in TIERS if tier.startswith(incomplete)))


def _presets(_ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    from chordcache.config.presets import preset_names, preset_summary

    names = [name for name in preset_names() if name.startswith(incomplete)]
    presets = [CompletionItem(name, help=preset_summary(name)) for name in names]
    return _items("file", incomplete) + presets  # bash completes files only if no word behind them fits


def _features(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return names of features of the config."""
    from chordcache.config.config import Config
    from chordcache.config.yaml_files import load_config

    try:
        config = load_config(ctx.params.get("config"))
    except ChordcacheError:
        config = Config()
    return _items("plain", *(name for name in config.names() if name.startswith(incomplete)))


def default_cache() -> str:
    """Return the cache of a command that does not name one."""
    return os.environ.get(CACHE_VARIABLE) or "cache"


def _keys(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return keys of the cache that is named before, in an argument or an option ``cache`` or ``path``."""
    from chordcache.storage.catalog_file import keys_beginning_with

    cache = ctx.params.get("cache") or ctx.params.get("path") or default_cache()
    return _items("plain", *(key for key in keys_beginning_with(cache, incomplete) if key.isprintable()))


PATH = Completed(lambda _ctx, incomplete: _items("file", incomplete))
FOLDER = Completed(lambda _ctx, incomplete: _items("dir", incomplete))
NAMED_FOLDER = Completed(
    lambda _ctx, incomplete: _items("dir", incomplete[incomplete.find("=") + 1 :]), takes_urls=True
)
"""A folder of sources, also with a name before it: NAME=PATH"""
SOURCE = Completed(lambda _ctx, incomplete: _items("file", incomplete), takes_urls=True)
"""A file or a folder of sources"""
LABELS = Completed(_labels)
"""A CSV file of labels, or the word dir"""
TIER = Completed(_tiers)
FEATURES = Completed(_features)
"""Names of features with commas between them"""
CONFIG = Completed(_presets, may_have_spaces=True)
"""A YAML file or the name of a preset"""
CACHE_OR_KEY = Completed(lambda ctx, incomplete: [*_items("file", incomplete), *_keys(ctx, incomplete)])
KEY = Completed(_keys)
"""The key of a video of the cache in the argument ``cache`` or ``path``"""


# Values of environment variables


def variables_in(ctx: click.Context, message: str) -> str:
    """Return the end of an error message about values of environment variables: the names of the variables.

    ``ctx`` is that of the command. A message is about a value if it begins with its parameter, or quotes it.
    """
    variables = []
    for param in ctx.command.params:
        if ctx.get_parameter_source(str(param.name)) is click.core.ParameterSource.ENVIRONMENT:
            value = param.value_from_envvar(ctx)
            values = map(str, value if isinstance(value, (list, tuple)) else [value])
            texts = [printable(text) for value in values for text in (value, absolute(value))]
            begins = message.startswith(tuple(f"{name}:" for name in (param.name, *param.opts)))
            if begins or any(f"'{text}'" in message for text in texts):
                variables.append(f"{param.envvar}={printable(os.environ.get(str(param.envvar), ''))}")
    return f" ({', '.join(variables)} is set in the environment)" if variables else ""
