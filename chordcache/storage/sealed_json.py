"""Sealed JSON: one line of ASCII JSON that ends with its own digest, so that readers detect a flipped bit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chordcache.digests import hex128
from chordcache.errors import DamageError, FormatVersionError, NotFoundError, printable
from chordcache.records import to_json
from chordcache.storage.atomic import no_space_as_error

FORMAT_VERSION = 2
"""Version of the format. It is raised when an older reader would misread what is written now."""

_SEAL = ', "xxh3_128": "'


def seal(data: Mapping[str, Any]) -> str:
    """Return one line of ASCII JSON with its own digest. Undecodable file name bytes are kept as ``\\udcXX``."""
    body = json.dumps(to_json(data), allow_nan=False)[:-1]
    return f'{body}{_SEAL}{hex128(body.encode())}"}}'


def unseal(line: str, source: str) -> dict[str, Any]:
    """Read a sealed line.

    Raises
    ------
    DamageError
        If the digest does not match or is missing. ``source`` names the file in the message.
    FormatVersionError
        If the digest matches but the line states another format version.
    """
    body, found, tail = line.rstrip("\n").rpartition(_SEAL)
    if not found or tail != hex128(body.encode()) + '"}':
        raise DamageError(f"'{printable(source)}' is damaged: the digest of its JSON does not match")
    data: dict[str, Any] = json.loads(body + "}")
    version = data.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        is_older = isinstance(version, int) and version < FORMAT_VERSION
        action = "Scan and build again" if is_older else "Read it with the chordcache that wrote it"
        raise FormatVersionError(
            f"'{printable(source)}': got format version {version}, expected {FORMAT_VERSION}. {action}."
        )
    return data


def read_sealed(path: Path) -> dict[str, Any]:
    """Read a file of one sealed line. Raises as ``unseal`` does, and ``NotFoundError``."""
    try:
        return unseal(path.read_text(encoding="ascii"), str(path))
    except FileNotFoundError:
        raise NotFoundError(f"no such file '{printable(path)}'") from None
    except UnicodeDecodeError:
        raise DamageError(f"'{printable(path)}' is damaged: it is not ASCII") from None


def iter_sealed(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the sealed lines of a file. A cut last line, left by a process killed during a write, is skipped.

    Raises
    ------
    DamageError
        If another line is damaged.
    """
    if not path.exists():
        return
    if not path.is_file():
        raise DamageError(f"'{printable(path)}' is damaged: it is not a file")
    with open(path, encoding="ascii", errors="replace") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield unseal(line, str(path))


def append_line(path: Path, line: str) -> None:
    """Append one line with one write. A line that an earlier kill cut off is removed first."""
    with no_space_as_error(path), open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.truncate(_last_line_start(path))
        file.write(line.encode("ascii") + b"\n")


def _last_line_start(path: Path) -> int:
    data = path.read_bytes()
    return data.rfind(b"\n") + 1
