"""Change the table at the end of a file of arrays, and seal it again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from chordcache.digests import digest64, hex128, sealed

Arrays = dict[str, dict[str, Any]]
"""Name of each array to its entry in the table"""


def table_of(path: Path) -> Arrays:
    """Read the entries of the table."""
    arrays: Arrays = json.loads(path.read_bytes().splitlines()[-1])["arrays"]
    return arrays


def entry_of(offset: int, values: np.ndarray) -> dict[str, Any]:
    """Return the entry of a whole array."""
    return {"offset": offset, "shape": values.shape, "dtype": values.dtype.str, "digest": digest64(values.copy())}


def line_of(arrays: Arrays) -> bytes:
    """Return the last line of a file."""
    return sealed(json.dumps({"arrays": arrays})).encode() + b"\n"


def change_table(path: Path, change: Callable[[Arrays], object]) -> None:
    """Replace the file by one with another table."""
    arrays, data = table_of(path), path.read_bytes()
    change(arrays)
    head = data[: data[:-1].rindex(b"\n") + 1]
    aside = path.with_name("aside")
    aside.write_bytes(head + line_of(arrays))
    os.replace(aside, path)


def sealed_again(data: bytes) -> bytes:
    """Return the bytes of a file whose last line, whatever it says, has the right digest."""
    head, newline, line = data.removesuffix(b"\n").rpartition(b"\n")
    body, _, _ = line.rpartition(b', "xxh3_128": "')
    return head + newline + (body or line) + b', "xxh3_128": "%b"}\n' % hex128(body or line).encode()


def put_array(path: Path, name: str, values: np.ndarray) -> None:
    """Add or replace an array. Its values stand before the table, and its own digest is right."""
    data = path.read_bytes()
    end = data[:-1].rindex(b"\n")
    aside = path.with_name("aside")
    aside.write_bytes(data[:end] + values.tobytes() + data[end:])
    os.replace(aside, path)
    change_table(path, lambda arrays: arrays.update({name: entry_of(end, values)}))
