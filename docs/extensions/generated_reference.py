"""The pages of docs/reference/, which end with what the code says of itself.

A page has its title and first sentences in git. The rest is added whenever the page is read: the help of each command,
each key of a config, and the directives of autodoc for each public name.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import click
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import chordcache
from chordcache import errors
from chordcache.cli import COMMANDS, cli
from chordcache.config.config import Config, Hdf5Config, config_sections

COLUMNS = 88
"""[letters] Width of the help of a command, which fits on the page"""

PARTS = {
    "Read and train": ("chordcache.read", "chordcache.train"),
    "Make a cache": ("chordcache.index", "chordcache.building", "chordcache.engine"),
    "Keep it": ("chordcache.verifying",),
    "Look at it, export it, measure it": (
        "chordcache.look", "chordcache.formats", "chordcache.sources", "chordcache.tools"
    ),
    "Exceptions": ("chordcache.errors",),
}  # fmt: skip
"""Heading to the folders of the public names below it"""

FOREIGN_BASES = "DistributedSampler, Dataset, object"
"""Base classes whose members are left out"""


def command_lines() -> Iterator[str]:
    """Yield the help of each command below a heading of its own, and the table of exit codes."""
    with click.Context(cli, info_name="chordcache", **cli.context_settings) as program:
        for group, summaries in COMMANDS.items():
            yield f"## {group}"
            for name in summaries:
                command = cli.get_command(program, name)
                assert command is not None
                yield f"### chordcache {name}"
                yield f"[Notes on `{name}`](../command_line.md#chordcache-{name})"
                yield from help_texts(command, name, program)
    yield "## Exit codes"
    yield "The help of a command names the codes of its results. An error ends every command with one of these:"
    rows = [
        f"| {error.exit_code} | `{name}` | {first_line(error)} |"
        for name, error in vars(errors).items()
        if isinstance(error, type) and "exit_code" in vars(error) and error is not errors.ChordcacheError
    ]
    yield "\n".join(["| code | exception in Python | meaning |", "|---:|---|---|", *rows])
    yield "[The command line](../command_line.md#exit-codes) has those of signals and of closed pipes."


def help_texts(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    """Yield the help of a command and of the commands below it, as blocks."""
    with click.Context(command, parent=parent, info_name=name, terminal_width=COLUMNS) as context:
        yield f"```text\n{command.get_help(context)}\n```"
        for child in command.commands.values() if isinstance(command, click.Group) else ():
            yield from help_texts(child, str(child.name), context)


def setting_lines() -> Iterator[str]:
    """Yield a table of the keys of each section of a config."""
    yield "## tiers"
    yield f"`{plain(Config().tiers)}` by default. {described(Config)['tiers']}"
    for name, section in config_sections().items():
        yield f"## {name if name == 'frames' else f'features.{name}'}"
        yield from setting_table(section)
    yield "## hdf5"
    yield from setting_table(Hdf5Config)


def setting_table(section: type[Any]) -> Iterator[str]:
    """Yield the first line of a class of settings, and a table of its fields."""
    yield first_line(section)
    texts, defaults = described(section), section()
    rows = []
    for field in dataclasses.fields(section):
        if field.name not in texts:
            message = "%s.%s has no docstring, which would be its meaning"
            logging.getLogger(__name__).warning(message, section.__name__, field.name)
        kind = str(field.type).replace("None", "null").replace(" | ", " or ").replace("tuple[", "list[")
        kind = kind.replace(", ...]", "]").replace("list[Bucket]", "list of [height, width, num_frames]")
        default = plain(getattr(defaults, field.name))
        rows.append(f"| `{field.name}` | {kind}: `{default}` | {texts.get(field.name, '')} |")
    if rows:
        yield "\n".join(["| key | type and default | meaning |", "|---|---|---|", *rows])


def described(section: type[Any]) -> dict[str, str]:
    """Return the docstrings of the fields of a class and of its bases, in the words of YAML."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__[:-1]):
        name = None
        for node in ast.parse(inspect.getsource(base)).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                texts[name], name = in_words_of_yaml(str(node.value.value)), None
    return texts


def in_words_of_yaml(text: str) -> str:
    """Return a docstring as Markdown, with ``null`` instead of ``None`` and so on."""
    text = re.sub(r"(?<!\w)``|``(?!\w)", "`", " ".join(text.split()))
    return re.sub(r"\b(None|True|False)\b", lambda match: plain(ast.literal_eval(match[0])), text).replace("|", r"\|")


def plain(value: Any) -> str:
    """Return a value as in YAML."""
    return json.dumps(value).strip('"') or '""'


def first_line(documented: Any) -> str:
    """Return the summary of a docstring."""
    return in_words_of_yaml(str(inspect.getdoc(documented)).partition("\n\n")[0])


def name_lines() -> Iterator[str]:
    """Yield the directives that document each public name."""
    modules = {name: module_of(name) for name in chordcache.__all__ if name != "__version__"}
    for heading, folders in PARTS.items():
        yield f"## {heading}"
        for name in [name for name, module in modules.items() if module.startswith(folders)]:
            modules.pop(name)
            yield directive(name)
    if modules:
        logging.getLogger(__name__).warning("PARTS has no place for %s", ", ".join(modules))


def module_of(name: str) -> str:
    """Return the module of a public name, or the name of the module that it is."""
    value = getattr(chordcache, name)
    return str(getattr(value, "__module__", value.__name__))


def directive(name: str) -> str:
    """Return the directive for a public name, whatever it is."""
    value = getattr(chordcache, name)
    if inspect.ismodule(value):
        text = f".. py:module:: chordcache.{name}\n\n**chordcache.{name}**: {first_line(value)}\n\n{members_of(value)}"
    elif not inspect.isclass(value):
        text = f".. autofunction:: chordcache.{name}"
    elif issubclass(value, Exception):
        text = f".. autoexception:: chordcache.{name}\n   :show-inheritance:"
    else:
        text = f".. autoclass:: chordcache.{name}\n   :members:\n   :inherited-members: {FOREIGN_BASES}"
    return f"```{{eval-rst}}\n{text}\n```"


def members_of(module: ModuleType) -> str:
    """Return the directives for the functions of a module, or a list of the classes that it gives short names."""
    names = [name for name in dir(module) if not name.startswith("_")]
    if hasattr(module, "__all__"):
        return "\n".join(f"* ``{name}``: {first_line(getattr(module, name))}" for name in names)
    functions = {name: value for name, value in vars(module).items() if name in names and inspect.isfunction(value)}
    own = [name for name, function in functions.items() if function.__module__ == module.__name__]
    return "\n\n".join(f".. autofunction:: {module.__name__}.{name}" for name in own)


GENERATED = {
    "reference/commands": command_lines,
    "reference/settings": setting_lines,
    "reference/python": name_lines,
}
"""Page to the function that yields its paragraphs"""


def append(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add what is generated to the text of a page."""
    if docname in GENERATED:
        source[0] += "\n\n" + "\n\n".join(GENERATED[docname]()) + "\n"


def outdated(app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return the pages that are always read again, since the code may have changed."""
    return [name for name in GENERATED if name in env.found_docs]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above to the build."""
    app.connect("source-read", append)
    app.connect("env-get-outdated", outdated)
    return {"parallel_read_safe": True}
