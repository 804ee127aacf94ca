"""Sealed JSON: one line of ASCII JSON that ends with its own digest, so that readers detect a flipped bit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from chordcache.digests import sealed, sealed_body
from chordcache.errors import OTHER_FORMAT, ChordcacheError, DamageError, NotFoundError, printable
from chordcache.json_records import FINITE_JSON, Record, from_json, parse_json, to_json
from chordcache.storage import opener

FORMAT_VERSION = 5
"""Version of the format. No other one is read."""

_VERSION_KEY = b'"format_version"'
_BEGINNING = b"{%b: %d, " % (_VERSION_KEY, FORMAT_VERSION)

T = TypeVar("T")


def seal(data: Mapping[str, Any] | Record) -> str:
    """Return one line of ASCII JSON with its own digest. Undecodable file name bytes are kept as ``\\udcXX``."""
    return sealed(json.dumps(to_json(data), allow_nan=False))


def seal_versioned(record: Record) -> str:
    """Return the sealed line of a record, with the format version."""
    return seal({"format_version": FORMAT_VERSION, **to_json(record)})


def unseal(line: str, source: str) -> dict[str, Any]:
    """Read a sealed line. ``source`` names the file in errors.

    Raises ``DamageError`` if the digest does not match or is missing, and ``ChordcacheError`` if it matches but the
    line states a format version that is not read.
    """
    return _plain(_body(line, source), source)


def unseal_as(line: str | bytes, source: str, kind: type[T], what: str) -> T:
    """Read a sealed line that holds a value of a type. ``what`` names the type for people.

    Raises as ``unseal`` does, and ``DamageError`` if the data is not of that type.
    """
    body = _body(line, source)
    rest = b"{" + body.removeprefix(_BEGINNING) if body.startswith(_BEGINNING) else body
    if _VERSION_KEY not in rest:  # else it may be another version, which a type with unknown fields would ignore
        try:
            return parse_json(rest, kind)
        except (ValueError, RecursionError):
            pass  # damage, or undecodable file names, which only the slower way below reads
    data = _plain(body, source)
    data.pop("format_version", None)
    try:
        return from_json(data, kind)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"'{printable(source)}' is damaged: it is not {what} ({printable(str(error))})") from None


def _body(line: str | bytes, source: str) -> bytes:
    """Return the JSON that a line seals."""
    body = sealed_body(line.encode() if isinstance(line, str) else line)
    if body is None:
        raise DamageError(f"'{printable(source)}' is damaged: the digest of its JSON does not match")
    return body


def _plain(body: bytes, source: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = FINITE_JSON.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise DamageError(f"'{printable(source)}' is damaged: it is not JSON ({printable(str(error))})") from None
    check_version(data, source)
    return data


def check_version(data: Mapping[str, Any], source: str | os.PathLike[str]) -> None:
    """Raise ``ChordcacheError`` if data states a format version that is not read. ``source`` names the file."""
    version = data.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        what = f"'{printable(source)}': got format version {version}, expected {FORMAT_VERSION}"
        raise ChordcacheError(f"{what}. Build the cache again in a new folder.", exit_code=OTHER_FORMAT)


def read_sealed(cache: Path, name: str, kind: type[T], what: str) -> T:
    """Read a file of one sealed line. Raises as ``unseal_as`` and ``opener.read_file`` do."""
    path = f"{cache}/{name}"
    try:
        return unseal_as(opener.read_file(cache, name).decode("ascii").replace("\r\n", "\n"), path, kind, what)
    except FileNotFoundError:
        raise NotFoundError(f"no such file '{printable(path)}'") from None
    except UnicodeDecodeError:
        raise DamageError(f"'{printable(path)}' is damaged: it is not ASCII") from None


def iter_sealed(cache: Path, name: str, kind: type[T], what: str) -> Iterator[T]:
    """Yield the sealed lines of a file. A cut last line, left by a process killed during a write, is skipped.

    Raises ``DamageError`` if another line is damaged, and ``StorageError`` if the file cannot be read.
    """
    for line in opener.iter_lines(cache, name):
        if not line.endswith(b"\n"):
            return
        yield unseal_as(line.replace(b"\r\n", b"\n"), f"{cache}/{name}", kind, what)
