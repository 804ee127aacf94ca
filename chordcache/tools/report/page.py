"""The page as a file: the template, its scripts and styles, and the policy that allows only these."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from chordcache.engine.signals import uninterruptible
from chordcache.errors import UsageError, printable
from chordcache.storage.atomic import NO_SPACE, no_space_as_error, publish

_FOLDER = Path(__file__).resolve().parent


def _asset(name: str) -> Markup:
    """Return a file of the package. It is our own code, and goes into the page as it is."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _source(text: str) -> str:
    """Return the source of a policy that allows one script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(scripts: Sequence[str], styles: Sequence[str], *, has_folder: bool) -> str:
    """Return the content security policy of a page: its own scripts and styles, and pictures from nowhere else."""
    images = "data: 'self' file:" if has_folder else "data:"
    return (
        f"default-src 'none'; img-src {images}; script-src {' '.join(map(_source, scripts))}; "
        f"style-src {' '.join(map(_source, styles))}; base-uri 'none'; form-action 'none'"
    )


def pieces_of_page(context: Mapping[str, Any], *, has_folder: bool) -> Iterator[str]:
    """Yield the page in pieces. Iterators in the context are read as they are needed.

    Parameters
    ----------
    context : mapping
        Values of the template. Everything but ``Markup`` is escaped.
    has_folder : bool
        True if the pictures are files beside the page.
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
    return template.generate(**assets, **context, policy=Markup(policy(scripts, styles, has_folder=has_folder)))


@contextmanager
def new_file(path: Path) -> Iterator[IO[str]]:
    """Yield a file under another name, which gets its final name at the end of the block.

    Raises
    ------
    UsageError
        If the file cannot be written.
    NoSpaceError
        If the disk is full.
    """
    partial = path.with_name(f".{path.name[:80]}-{os.getpid()}.partial")
    with no_space_as_error(path):
        try:
            file = open(partial, "x", encoding="utf-8", newline="")  # noqa: SIM115 # closed before it is published
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            raise UsageError(f"output: cannot write '{printable(path)}': {error.strerror}") from None
        try:
            with file:
                yield file
            publish(partial, path)
        finally:
            partial.unlink(missing_ok=True)


_MARKER = "made-by-chordcache-report.txt"
"""File in a folder of pictures. A folder without it is never replaced"""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder under another name, which gets its final name at the end of the block.

    Raises
    ------
    UsageError
        If there is another folder of that name, which no report made, or the folder cannot be made.
    NoSpaceError
        If the disk is full.
    """
    if os.path.lexists(folder) and not (folder / _MARKER).is_file():
        raise UsageError(f"output: '{printable(folder)}' was not made by a report. Move it, or give another name.")
    partial, old = (folder.with_name(f".{folder.name[:80]}-{os.getpid()}.{kind}") for kind in ("partial", "old"))
    with no_space_as_error(folder):
        try:
            partial.mkdir()
            (partial / _MARKER).write_text(
                "The pictures of a page of chordcache report. The next report replaces them.\n"
            )
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            raise UsageError(f"output: cannot write '{printable(folder)}': {error.strerror}") from None
        try:
            yield partial
            with uninterruptible():
                _replace_folder(partial, folder, old)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _replace_folder(new: Path, folder: Path, old: Path) -> None:
    """Give a new folder its name. The one that had it is removed after that, or gets its name back."""
    try:
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
    finally:
        if old.exists() and not folder.exists():
            os.replace(old, folder)
    shutil.rmtree(old, ignore_errors=True)
