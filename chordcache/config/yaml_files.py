"""Config files: YAML to a ``Config``, and back. Only the file or the preset that is named is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from chordcache.arguments import did_you_mean
from chordcache.config.config import Config, config_from_json, config_to_json
from chordcache.config.presets import is_preset_like, preset_names, preset_path
from chordcache.errors import ConfigError, NotFoundError, printable


def config_to_yaml(config: Config) -> str:
    """Return YAML from which ``load_config`` makes an equal config, with every key, ``train`` too."""
    data = json.loads(json.dumps({**config_to_json(config), "train": config.train}))  # tuples become lists
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


class _Loader(yaml.SafeLoader):
    """The parser of ``yaml.safe_load``. Its errors about a value, such as a wrong date, have a place too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _syntax_error(name: str, text: str, error: Exception) -> ConfigError:
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
    return ConfigError(f"{name}{place}: got text that is not YAML: {printable(' '.join(what.split()))}")


def _config_file(path: str | Path) -> Path:
    """Return the YAML file that a path or the name of a preset means. A path that exists comes first."""
    if not is_preset_like(path) or os.path.isfile(path):
        return Path(path)
    names, name = preset_names(), os.fspath(path)
    if name not in names:
        valid = f"a YAML file or a preset: {', '.join(names)}{did_you_mean(name, names)}"
        raise NotFoundError(f"config: got '{printable(name)}', expected {valid}")
    return preset_path(name)


def load_config(path: str | Path | None, onto: Config | None = None) -> Config:
    """Read a YAML file or a preset, and merge it onto the packaged defaults. None returns the defaults.

    Parameters
    ----------
    path : str or Path, optional
        A YAML file; or, if no file has this name, the name of a preset, such as ``"flow"``.
    onto : Config, optional
        Config to merge the file onto instead of the defaults.

    Raises
    ------
    NotFoundError
        If the file or the preset does not exist.
    ConfigError
        If the file is not YAML. The message begins with file:line:column. Also as in ``config_from_json``.
    """
    if path is None:
        return onto or Config()
    data = read_config(path)
    try:
        return config_from_json(data, onto)
    except ConfigError as error:
        raise ConfigError(f"config '{printable(path)}': {error}") from None


def read_config(path: str | Path) -> Any:
    """Return what a YAML file or a preset says, as plain data that is not checked. Raises as ``load_config``."""
    name = printable(path)
    try:
        text = _config_file(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if isinstance(error, NotFoundError):
            raise
        raise NotFoundError(f"no config file '{name}'") from None
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"cannot read config '{name}': {error}") from None
    try:
        return _Loader(text).get_single_data()
    except (yaml.YAMLError, RecursionError) as error:
        raise _syntax_error(name, text, error) from None
