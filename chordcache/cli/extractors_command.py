"""``chordcache extractors``."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from chordcache.cli.options import json_option
from chordcache.cli.output import echo_result
from chordcache.errors import printable

if TYPE_CHECKING:  # --help does not need what it loads
    from chordcache.features.descriptions import ExtractorFacts


@click.command()
@json_option
def extractors(as_json: bool) -> None:
    """List the features that can be built: parameters, tiers, and what is missing.

    Plug-ins are listed if their package has entry points in the group chordcache.extractors.

    \b
    Example:
      chordcache extractors
    """
    from chordcache.features.descriptions import describe_extractors  # the import is not for --help

    descriptions = describe_extractors()
    data = [{**dataclasses.asdict(extractor), "parameters": _plain(extractor)} for extractor in descriptions]
    echo_result({"extractors": data}, "\n".join(line for facts in descriptions for line in _lines(facts)), as_json)


def _lines(facts: ExtractorFacts) -> list[str]:
    state = "installed" if facts.missing is None else f"not usable: {printable(facts.missing)}"
    parameters = [f"{name}={json.dumps(value)}" for name, value in _plain(facts).items()]
    lines = [
        f"{printable(facts.name):8} {', '.join(facts.tiers):12} {state}",
        f"         {printable(facts.description)}",
    ]
    if facts.package != "chordcache":
        lines.append(f"         from package {printable(facts.package)}, extractor: {printable(facts.extractor)}")
    if parameters:
        lines += click.wrap_text(" ".join(parameters), 110, "         ", "         ").split("\n")
    return lines


def _plain(facts: ExtractorFacts) -> dict[str, object]:
    """Return the defaults as plain data. A plug-in may have defaults of any type."""
    return {name: json.loads(json.dumps(value, default=repr)) for name, value in facts.parameters.items()}
