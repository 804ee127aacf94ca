"""Catalogs with other content in some rows or sections, and right digests: what a stranger may send."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chordcache.storage.catalog_file import CATALOG, HEAD_BYTES, write_catalog_file


def sections_of(cache: Path) -> dict[str, bytes]:
    """Return the content of each section of a catalog, read without the package."""
    data = (cache / CATALOG).read_bytes()
    table = json.loads(data[:HEAD_BYTES])["sections"]
    return {name: data[start : start + size] for name, (start, size, _) in table.items()}


def rows_of(cache: Path) -> list[str]:
    """Return the lines of a catalog, in the order of keys."""
    data = (cache / CATALOG).read_bytes()
    end = json.loads(data[:HEAD_BYTES])["sections"]["offsets"][0]
    return data[HEAD_BYTES:end].decode().splitlines()


def forge(
    cache: Path, *, rows: Mapping[int, str] | None = None, sections: Mapping[str, bytes | None] | None = None
) -> None:
    """Rewrite a catalog.

    Parameters
    ----------
    cache : Path
        The folder of a cache.
    rows : mapping of int to str, optional
        Position to another line. The offsets follow.
    sections : mapping of str to bytes or None, optional
        Name of a section to another content, or None to leave it out.
    """
    lines = [f"{line}\n".encode() for line in rows_of(cache)]
    for position, line in (rows or {}).items():
        lines[position] = f"{line}\n".encode()
    offsets = np.cumsum([HEAD_BYTES, *map(len, lines)], dtype="<i8")
    changed = {**sections_of(cache), "offsets": offsets.tobytes(), **(sections or {})}
    with open(cache / CATALOG, "wb") as file:
        file.write(bytes(HEAD_BYTES) + b"".join(lines))
        kept = {name: content for name, content in changed.items() if content is not None}
        write_catalog_file(file, len(lines), kept)
