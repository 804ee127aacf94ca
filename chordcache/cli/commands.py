"""Classes of commands: options of the help in groups, and suggestions for mistyped names of commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from chordcache.arguments import did_you_mean
from chordcache.errors import UsageError, printable

OPTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "What to build": ("features", "config", "tiers", "drop", "on_damage", "source_hash"),
    "What to read": ("level", "labels", "source", "format", "columns", "classes"),
    "Which videos": (
        "videos", "video_template", "where", "roots", "follow_symlinks", "retry_quarantined", "prune", "prune_many",
    ),
    "What to do with damage": ("repair", "wait", "verify.dry_run"),
    "Budget": ("budget_bytes", "budget_hours"),
    "Sample": ("plan.sample",),
    "Clips": ("batch_size", "num_frames", "stride", "size"),
    "Measurement": ("workers", "step_ms", "seconds"),
    "When to stop": ("max_failures", "fail_fast"),
    "Limits of one file": ("stall_seconds", "file_seconds", "memory_bytes", "retries"),
    "Processes": ("jobs", "engine", "address", "num_parts", "part", "scratch", "build.wait"),
    "Output": (
        "cache", "output", "dry_run", "build.sample", "as_json",
        "quiet", "verbose", "help",
    ),
}  # fmt: skip
"""Heading of each group of options, to the names of the parameters below it. ``command.parameter`` is the parameter of
one command only."""


def heading_of(command: str | None, parameter: str | None) -> str | None:
    """Return the heading of an option in the help of a command, or None if the option is in no group."""
    for name in (f"{command}.{parameter}", parameter):
        for heading, names in OPTION_GROUPS.items():
            if name in names:
                return heading
    return None


def write_sections(
    formatter: click.HelpFormatter, sections: Mapping[str, Sequence[tuple[str, str]]], column: int = 30
) -> None:
    """Write lists of names and texts below headings. All texts begin in the same column."""
    names = [name for rows in sections.values() for name, _ in rows]
    width = min(column, max(map(len, names), default=0))
    for heading, rows in sections.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in rows], col_max=column)


class GroupedCommand(click.Command):
    """A command whose help lists its options in groups, see ``OPTION_GROUPS``."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        sections: dict[str, list[tuple[str, str]]] = {heading: [] for heading in OPTION_GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):  # click 8.5 has records of arguments too
                name = "help" if "--help" in param.opts else param.name
                sections[heading_of(self.name, name) or "Output"].append(record)
        write_sections(formatter, sections)


class SuggestingGroup(click.Group):
    """A group of commands. For a mistyped one, the error names the most similar one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments begin with. Raises ``UsageError``."""
        if not ctx.resilient_parsing and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise unknown_command(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def unknown_command(name: str, valid: Iterable[str]) -> UsageError:
    """Return the error about a command that does not exist."""
    valid = list(valid)
    similar = did_you_mean(name, valid)
    return UsageError(f"got '{printable(name)}', expected a command{similar or ': ' + ', '.join(valid)}")
