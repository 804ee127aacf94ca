"""The pages that end with what other files say: of commands and settings, and of the notebook.

A page has its title and first sentences in git. The rest is added whenever the page is read: the help of each command,
each key of a config, the cells of the notebook. The reference of Python has directives of autodoc, whose defaults are
made readable here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from sphinx.application import Sphinx
from sphinx.util import logging

from chordcache import errors
from chordcache.cli import COMMANDS, cli
from chordcache.config.config import Config, Hdf5Config, config_sections

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_hour.ipynb"

COLUMNS = 88
"""[letters] Width of the help of a command, which fits on the page"""


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


def notebook_cells() -> Iterator[str]:
    """Yield the cells of the notebook but the first, which has the title."""
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"][1:]:
        text = "".join(cell["source"])
        yield text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"


def readable_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Return a signature whose defaults are as people write them, and none for a protocol."""
    if not signature or getattr(value, "_is_protocol", False):
        return None if signature is None else "", returns
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        if field.default_factory is not dataclasses.MISSING:
            signature = signature.replace("<factory>", f"{field.default_factory.__name__}()", 1)
    for pattern, text in ((r"<function (\w+)>", r"\1"), (r"mappingproxy\((.*?)\)", r"\1"), (r"(\.\d{4})\d{8,}", r"\1")):
        signature = re.sub(pattern, text, signature)
    return signature.replace("dict()", "{}").replace("frozenset({})", "frozenset()"), returns


GENERATED = {
    "reference/commands": command_lines,
    "reference/settings": setting_lines,
    "notebook": notebook_cells,
}
"""Page to the function that yields its paragraphs"""


def append(app: Sphinx, docname: str, source: list[str]) -> None:
    """Add what is generated to the text of a page."""
    if docname in GENERATED:
        source[0] += "\n\n" + "\n\n".join(GENERATED[docname]()) + "\n"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above to the build."""
    app.connect("source-read", append)
    app.connect("autodoc-process-signature", readable_signature)
    return {"parallel_read_safe": True}
