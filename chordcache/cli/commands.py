"""The class of commands, whose help has options in groups, and the words for mistakes on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from chordcache.arguments import did_you_mean
from chordcache.errors import UsageError, printable

OPTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Most used": ("build.cache", "build.features", "build.config", "build.jobs"),
    "What to build": ("features", "config", "tiers", "drop"),
    "What to read": ("level", "labels", "source", "format", "shots", "columns", "ignore", "header"),
    "Which videos": (
        "videos", "video_template", "splits", "where", "roots", "follow_symlinks", "retry_quarantined", "prune",
    ),
    "What to do with damage": ("repair", "against", "verify.dry_run"),
    "When to stop": ("max_failures",),
    "Limits of one file": ("stall_seconds", "file_seconds", "memory_bytes"),
    "Processes": ("jobs", "engine", "num_parts", "part", "wait"),
    "Output": (
        "cache", "output", "dry_run", "sample", "budget_bytes", "as_json",
        "quiet", "verbose", "help",
    ),
}  # fmt: skip
"""Heading of each group of options, to the names of the parameters below it. ``command.parameter`` is the parameter of
one command only."""

COMMAND = "chordcache.cli.commands"
"""Key in ``click.Context.meta`` of the context of the command"""

_MAX_COLUMN = 30
"""Largest column at which the texts of a help begin"""


def heading_of(command: str | None, parameter: str | None) -> str | None:
    """Return the heading of an option in the help of a command, or None if the option is in no group."""
    for name in (f"{command}.{parameter}", parameter):
        for heading, names in OPTION_GROUPS.items():
            if name in names:
                return heading
    return None


def write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write lists of names and texts below headings. All texts begin in the same column."""
    names = [name for rows in sections.values() for name, _ in rows]
    width = min(_MAX_COLUMN, max(map(len, names), default=0))
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in rows], col_max=_MAX_COLUMN)


class _HelpFormatter(click.HelpFormatter):
    def write_heading(self, heading: str) -> None:
        self.write(f"{'':{self.current_indent}}{click.style(heading, bold=True)}:\n")


class HelpContext(click.Context):
    """Context whose help has bold headings on a terminal. ``meta`` has that of the command, for errors."""

    formatter_class = _HelpFormatter

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.meta[COMMAND] = self


class GroupedCommand(click.Command):
    """A command whose help lists its options in groups, see ``OPTION_GROUPS``. An option is given once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises ``UsageError`` if a value would replace another."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args([*args])
            options: dict[str | None, click.Option] = {}
            for option in given:
                if not isinstance(option, click.Option) or option.multiple:
                    continue
                first = options.setdefault(option.name, option)
                if given.count(option) > 1 and not option.is_flag:
                    raise _given_twice(option, "it several times")
                if first is not option:
                    raise _given_twice(option, f"it with {first.opts[0]}")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in OPTION_GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):  # click 8.5 has records of arguments too
                name = "help" if "--help" in param.opts else param.name
                sections[heading_of(self.name, name) or "Output"].append(record)
        write_sections(formatter, sections)


def _given_twice(option: click.Option, what: str) -> UsageError:
    return UsageError(f"{max(option.opts, key=len)}: got {what}, expected one value. Leave the others out.")


_EXPECTED = {"integer": "an integer", "float": "a number"}
"""Value of an option, by the name of its type"""


def usage_message(error: click.UsageError) -> str | None:
    """Return a mistake on the command line in the words of the project's errors, None if the error is a help text."""
    ctx = error.ctx
    see = f"See '{ctx.command_path if ctx else 'chordcache'} --help'."
    if isinstance(error, click.NoSuchOption):
        options = [name for param in (ctx.command.params if ctx else ()) for name in param.opts]
        similar = did_you_mean(error.option_name, options)
        return f"got '{error.option_name}', expected an option{similar or '. ' + see}"
    if isinstance(error, click.MissingParameter) and error.param:
        expected = error.param.metavar if isinstance(error.param, click.Option) else "a value"
        return f"{error.param.name}: got nothing, expected {expected or 'a value'}. {see}"
    if isinstance(error, click.BadParameter) and error.param:
        got, kind = error.message.partition(" is not ")[0], error.param.type
        choices = kind.choices if isinstance(kind, click.Choice) else ()
        expected = f"one of {', '.join(choices)}" if choices else _EXPECTED.get(kind.name, kind.name)
        return f"{error.param.name}: got {got}, expected {expected}{did_you_mean(got.strip(chr(39)), choices)}"
    if isinstance(error, click.BadOptionUsage):
        got, expected = ("a value", "none") if "does not take" in error.message else ("nothing", "a value")
        return f"{error.option_name}: got {got}, expected {expected}"
    if type(error) is click.UsageError:
        return f"{error.message[:1].lower()}{error.message[1:].rstrip('.')}. {see}"
    return None


def unknown_command(name: str, valid: Iterable[str]) -> UsageError:
    """Return the error about a command that does not exist."""
    valid = list(valid)
    similar = did_you_mean(name, valid)
    return UsageError(f"got '{printable(name)}', expected a command{similar or ': ' + ', '.join(valid)}")
