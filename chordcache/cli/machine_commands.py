"""Commands below "This machine and this program": ``doctor``, ``completion``, ``help``."""

from __future__ import annotations

import dataclasses

import click
from click.shell_completion import get_completion_class

from chordcache.cli.commands import HelpContext, unknown_command
from chordcache.cli.options import jobs_option, json_option
from chordcache.cli.output import echo, echo_help, echo_result
from chordcache.cli.values import CONFIG, FOLDER
from chordcache.errors import printable


@click.command()
@click.argument("path", type=FOLDER, default=".")
@click.option(
    "-c", "--config", type=CONFIG, multiple=True, metavar="NAME|FILE",
    help="Only print all settings of a preset or a YAML file, as YAML. Several are merged in order.",
)  # fmt: skip
@jobs_option
@json_option
def doctor(path: str, config: tuple[str, ...], jobs: int | None, as_json: bool) -> None:
    """Check this machine, and list the features and the presets.

    PATH is the folder of the cache, or the folder in which you will make it.  [default: (the working folder)] Each
    finding that matters comes with the reason and with what to type.

    Exit code 0, also with findings.

    \b
    Example:
      chordcache doctor /data/cache
      chordcache doctor -c flow > my.yaml
    """
    if config:
        _print_config(config, as_json)
        return
    from chordcache.tools.doctor import diagnose  # --help does not need it

    findings = diagnose(path, jobs=jobs)
    lines = []
    for finding in findings:
        lines.append(f"{finding.severity:8} {finding.name:17} {printable(finding.what)}")
        if finding.severity != "ok":
            lines += [f"{'':26} {printable(finding.why)}", f"{'':26} run: {printable(finding.action)}"]
    echo_result({"findings": [dataclasses.asdict(finding) for finding in findings]}, "\n".join(lines), as_json)


def _print_config(config: tuple[str, ...], as_json: bool) -> None:
    from chordcache.config.config import config_to_json
    from chordcache.config.yaml_files import config_to_yaml, load_config

    loaded = load_config(config)
    data = {"config": {**config_to_json(loaded), "train": loaded.train}}
    echo_result(data, config_to_yaml(loaded).rstrip("\n"), as_json)


SHELLS = ("bash", "zsh", "fish")
"""Shells that have a completion"""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell.

    In a new shell, the TAB key then completes commands, options, files, folders, tiers, features, presets, and keys of
    a cache.

    \b
    Example:
      chordcache completion bash >> ~/.bashrc
      chordcache completion zsh >> ~/.zshrc
      chordcache completion fish > ~/.config/fish/completions/chordcache.fish
    """
    ctx = click.get_current_context().find_root()
    cls = get_completion_class(shell)
    assert cls is not None
    echo(cls(ctx.command, {}, "chordcache", "_CHORDCACHE_COMPLETE").source(), nl=False)


@click.command()
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
def help(names: tuple[str, ...]) -> None:
    """Print the help of a command.

    'chordcache help build' is the same as 'chordcache build --help'.

    \b
    Example:
      chordcache help build
    """
    ctx = click.get_current_context().find_root()
    for name in names:
        command = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) else None
        if command is None:
            raise unknown_command(name, ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else ())
        ctx = HelpContext(command, info_name=name, parent=ctx)
    echo_help(ctx)
