"""The page as a file: the template, its scripts and styles, and the policy that allows only these."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from chordcache.errors import UsageError, printable
from chordcache.storage.layout import check_local

_FOLDER = Path(__file__).resolve().parent


def _asset(name: str) -> Markup:
    """Return a file of the package. It is our own code, and goes into the page as it is."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _source(text: str) -> str:
    """Return the source of a policy that allows one script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the content security policy of a page: its own scripts and styles, and pictures from nowhere else."""
    return (
        f"default-src 'none'; img-src data:; script-src {' '.join(map(_source, scripts))}; "
        f"style-src {' '.join(map(_source, styles))}; base-uri 'none'; form-action 'none'"
    )


def pieces_of_page(context: Mapping[str, Any]) -> Iterator[str]:
    """Yield the page in pieces. Of the values of the template, everything but ``Markup`` is escaped.

    Iterators in the context are read as they are needed.
    """
    assets = {
        "uplot_css": _asset("uplot/uPlot.min.css"),
        "page_css": _asset("page.css"),
        "uplot_js": _asset("uplot/uPlot.iife.min.js"),
        "page_js": _asset("page.js"),
    }
    scripts, styles = [assets["uplot_js"], assets["page_js"]], [assets["uplot_css"], assets["page_css"]]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((_FOLDER / "page.html.j2").read_text(encoding="utf-8"))
    return template.generate(**assets, **context, policy=Markup(policy(scripts, styles)))


def check_output(output: Path, path: Path) -> None:
    """Raise ``UsageError`` if an output cannot be a new file, lies in a cache, or is what the page is made from."""
    check_local("output", output)
    name = printable(output)
    try:
        if output.is_dir():
            raise UsageError(f"output: got the folder '{name}', expected a file")
        if not output.parent.is_dir():
            raise UsageError(f"output: got '{name}', expected a file in a folder that exists")
        if output.exists() and not output.is_file():
            raise UsageError(f"output: got '{name}', which is not a regular file, expected a file")
        if output.exists() and path.exists() and os.path.samefile(output, path):
            raise UsageError(f"output: got '{name}', which is also 'path', expected another file")
        folder = Path(os.path.realpath(output.parent))
        if any((parent / "chordcache.json").exists() for parent in (folder, *folder.parents)):
            raise UsageError(f"output: got '{name}', a file in the cache, expected one outside of it")
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(f"output: cannot write '{name}': {error}") from None
