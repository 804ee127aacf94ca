"""``chordcache config``."""

from __future__ import annotations

import click

from chordcache.cli.commands import SuggestingGroup
from chordcache.cli.options import CONFIG_VARIABLE, json_option
from chordcache.cli.output import echo_result
from chordcache.cli.values import CONFIG, variable_argument
from chordcache.config.presets import preset_names, preset_summary


@click.group(cls=SuggestingGroup)
def config() -> None:
    """List the presets, or show all settings of a config.

    'build', 'plan' and 'verify' take the name of a preset, or a YAML file, with -c.

    \b
    Example:
      chordcache config list
      chordcache config show flow > my.yaml
    """


@config.command("list")
@json_option
def list_presets(as_json: bool) -> None:
    """List the presets.

    \b
    Example:
      chordcache config list
    """
    presets = {name: preset_summary(name) for name in preset_names()}
    echo_result({"presets": presets}, "\n".join(f"{name:12} {summary}" for name, summary in presets.items()), as_json)


@config.command()
@click.argument("config", type=CONFIG, required=False, metavar="[NAME|FILE]", **variable_argument(CONFIG_VARIABLE))
@json_option
def show(config: str | None, as_json: bool) -> None:
    """Print all settings of a config as YAML.

    The argument is the name of a preset or a YAML file.  [env var: CHORDCACHE_CONFIG; default: (all defaults)] Settings
    that it does not name have their defaults.

    \b
    Example:
      chordcache config show flow
    """
    from chordcache.config.config import config_to_json
    from chordcache.config.yaml_files import config_to_yaml, load_config

    loaded = load_config(config)
    data = {"config": {**config_to_json(loaded), "train": loaded.train}}
    echo_result(data, config_to_yaml(loaded).rstrip("\n"), as_json)
