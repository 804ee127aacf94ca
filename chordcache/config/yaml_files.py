"""Config files: YAML to a ``Config``, and back. Only the file or the preset that is named is opened."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from chordcache.arguments import as_items, did_you_mean
from chordcache.config.bounds import MAX_CONFIG_BYTES, MAX_CONFIG_VALUES, MAX_DEPTH, read_bounded
from chordcache.config.config import Config, config_from_json, config_to_json, merged
from chordcache.config.presets import is_preset_like, preset_names, preset_path
from chordcache.errors import NotFoundError, UsageError, printable

ConfigFiles: TypeAlias = "str | Path | Sequence[str | Path]"
"""A YAML file, the name of a preset, or several of them"""

_SCALARS = (
    ("null", r"(?:~|null|Null|NULL|)\Z", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)\Z", list("-+0123456789")),
    ("float", r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf)\Z|\.nan\Z",
     list("-+.0123456789")),
    ("merge", r"<<\Z", ["<"]),
)  # fmt: skip
"""Type to the plain text that has it, and its first characters, as in YAML 1.2. Other plain text is text: in YAML 1.1,
1:30 is 90, 010 is 8, no is False, and 2024-01-01 is a date"""

_TYPES = frozenset((*(name for name, _, _ in _SCALARS), "str", "seq", "map"))


class _RefusedError(yaml.MarkedYAMLError):
    """YAML that is correct, and not accepted."""


class _Loader(yaml.SafeLoader):
    """A parser of plain data. Its errors about a value, such as one of an unknown type, have a place too."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as PyYAML declares it
    yaml_constructors = {  # noqa: RUF012
        tag: function
        for tag, function in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _TYPES
    }

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None:
            _num_values(node, {}, 0)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


class _Dumper(yaml.SafeDumper):
    """A writer of what ``_Loader`` reads."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


for _name, _pattern, _first in _SCALARS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), _first)


def _num_values(node: yaml.Node, counts: dict[yaml.Node, int], depth: int) -> int:
    """Return the number of values of a node, with all that aliases repeat. Nothing is expanded for it."""
    if depth == MAX_DEPTH and isinstance(node, yaml.CollectionNode):  # an alias inside of its own value never ends
        raise _RefusedError(problem=f"values nested more than {MAX_DEPTH} deep", problem_mark=node.start_mark)
    if node not in counts:
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        names: set[str] = set()
        for key, _ in pairs:
            if isinstance(key, yaml.ScalarNode) and key.value in names:
                raise _RefusedError(
                    problem=f"the key '{key.value}' twice, expected it once", problem_mark=key.start_mark
                )
            if isinstance(key, yaml.ScalarNode):
                names.add(key.value)
        rows = node.value if isinstance(node, yaml.SequenceNode) else ()
        parts = [*rows, *(part for pair in pairs for part in pair)]
        counts[node] = 1 + sum(_num_values(part, counts, depth + 1) for part in parts)
        if counts[node] > MAX_CONFIG_VALUES:
            raise _RefusedError(problem=f"more than {MAX_CONFIG_VALUES:,} values", problem_mark=node.start_mark)
    return counts[node]


def config_to_yaml(config: Config) -> str:
    """Serialize a config to YAML with every key, including ``train``. ``load_config`` reads it back."""
    data = json.loads(json.dumps({**config_to_json(config), "train": config.train}))  # tuples become lists
    is_printable = all(line.isprintable() for line in _dumped(data, allow_unicode=True).split("\n"))
    return _dumped(data, allow_unicode=is_printable)


def _dumped(data: Any, *, allow_unicode: bool) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=120))


def _syntax_error(name: str, text: str, error: Exception) -> UsageError:
    """Return the error about text that is not YAML, as file:line:column with numbers from 1."""
    place, what = "", str(error)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        place = f":{error.problem_mark.line + 1}:{error.problem_mark.column + 1}"
        what = " ".join(filter(None, (error.context, error.problem)))
    elif isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        place = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        what = f"the character #x{error.character:04x}: {error.reason}"
    elif isinstance(error, RecursionError):
        what = "it is nested too deeply"
    kind = "" if isinstance(error, _RefusedError) else "text that is not YAML: "
    return UsageError(f"{name}{place}: got {kind}{printable(' '.join(what.split()))}")


def _config_file(path: str | Path) -> Path:
    """Return the YAML file that a path or the name of a preset means. A path that exists comes first."""
    if not is_preset_like(path) or os.path.isfile(path):
        return Path(path)
    names, name = preset_names(), os.fspath(path)
    if name not in names:
        valid = f"a YAML file or a preset: {', '.join(names)}{did_you_mean(name, names)}"
        raise NotFoundError(f"config: got '{printable(name)}', expected {valid}")
    return preset_path(name)


def load_config(path: ConfigFiles | Config | None, onto: Config | None = None) -> Config:
    """Read a YAML file or a preset, and merge it onto the packaged defaults. None returns the defaults.

    Parameters
    ----------
    path : str, Path, sequence of them, or Config, optional
        A YAML file; or, if no file has this name, the name of a preset, such as ``"flow"``. Several are merged in
        order. A config is returned.
    onto : Config, optional
        Config to merge the file onto instead of the defaults.

    Raises
    ------
    NotFoundError
        If the file or the preset does not exist.
    UsageError
        If the file is not YAML. The message begins with ``file:line:column``. Also as in ``config_from_json``.
    """
    if path is None:
        return onto or Config()
    if isinstance(path, Config):
        return path
    data = read_config(path)
    try:
        return config_from_json(data, onto)
    except UsageError as error:
        names = ", ".join(f"'{printable(name)}'" for name in as_items(path))
        raise UsageError(f"config {names}: {error}") from None


def read_config(path: ConfigFiles) -> Any:
    """Return what YAML files or presets say, as plain data that is not checked. Raises as ``load_config``."""
    if isinstance(path, Mapping):
        raise UsageError("config: got a dict, expected a YAML file, a preset or a Config. Write it to a file.")
    if not isinstance(path, (str, os.PathLike)):
        every = [{} if (data := read_config(one)) is None else data for one in path]
        return next((data for data in every if not isinstance(data, Mapping)), None) or functools.reduce(merged, every)
    name, file = printable(path), _config_file(path)
    try:
        text = read_bounded(file, MAX_CONFIG_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise NotFoundError(f"no config file '{name}'") from None
    except UsageError as error:
        raise UsageError(f"config {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read config '{name}': {error}") from None
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise _syntax_error(name, text, error) from None
