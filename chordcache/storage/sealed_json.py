"""Sealed JSON: one line of ASCII JSON that ends with its own digest, so that readers detect a flipped bit."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from chordcache.digests import sealed, sealed_body
from chordcache.errors import DamageError, FormatVersionError, NotFoundError, printable
from chordcache.records import Record, from_json, parse_json, to_json
from chordcache.storage import opener
from chordcache.storage.atomic import no_space_as_error, publish_all

FORMAT_VERSION = 4
"""Version of the format. It is raised when an older reader would misread what is written now."""

OLDEST_VERSION = 3
"""Oldest version that is read. Its lines are those of the present one, and its catalog is another, see ``Catalog``."""

_VERSION_KEY = b'"format_version"'
_VERSIONS = [b"{%b: %d, " % (_VERSION_KEY, version) for version in range(FORMAT_VERSION, OLDEST_VERSION - 1, -1)]

T = TypeVar("T")


def seal(data: Mapping[str, Any] | Record) -> str:
    """Return one line of ASCII JSON with its own digest. Undecodable file name bytes are kept as ``\\udcXX``."""
    return sealed(json.dumps(to_json(data), allow_nan=False))


def seal_versioned(record: Record) -> str:
    """Return the sealed line of a record, with the format version."""
    return seal({"format_version": FORMAT_VERSION, **to_json(record)})


def unseal(line: str, source: str) -> dict[str, Any]:
    """Read a sealed line. ``source`` names the file in errors.

    Raises ``DamageError`` if the digest does not match or is missing, and ``FormatVersionError`` if it matches but the
    line states a format version that is not read.
    """
    return _plain(_body(line, source), source)


def unseal_as(line: str | bytes, source: str, kind: type[T], what: str) -> T:
    """Read a sealed line that holds a value of a type. ``what`` names the type for people.

    Raises as ``unseal`` does, and ``DamageError`` if the data is not of that type.
    """
    body = _body(line, source)
    beginning = next((version for version in _VERSIONS if body.startswith(version)), None)
    rest = body if beginning is None else b"{" + body.removeprefix(beginning)
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
    """Raise ``FormatVersionError`` if data states a format version that is not read. ``source`` names the file."""
    version = data.get("format_version", FORMAT_VERSION)
    if version not in range(OLDEST_VERSION, FORMAT_VERSION + 1):
        is_older = isinstance(version, int) and version < OLDEST_VERSION
        action = "Scan again and build a new cache" if is_older else "Read it with the chordcache that wrote it"
        raise FormatVersionError(
            f"'{printable(source)}': got format version {version}, expected {FORMAT_VERSION}. {action}.",
            is_older=is_older,
        )


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


FINITE_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
"""Decoder that refuses numbers that are not finite"""


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

    Raises ``DamageError`` if another line is damaged, and ``UnreadableError`` if the file cannot be read.
    """
    for line in opener.iter_lines(cache, name):
        if not line.endswith(b"\n"):
            return
        yield unseal_as(line.replace(b"\r\n", b"\n"), f"{cache}/{name}", kind, what)


def _unshare(cache: Path, name: str) -> None:
    """Give a file that is also in a copy of the cache by hard links, as ``cp -al`` makes, a content of its own."""
    try:
        with opener.open_binary(cache, name) as file:
            if os.fstat(file.fileno()).st_nlink < 2:
                return
            place = f".{os.path.basename(name)}-{os.getpid()}.partial"
            opener.remove(cache, place)  # of a killed process, or a link of a stranger
            partial, flags = cache / place, os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with no_space_as_error(partial), open(opener.open_file(cache, place, flags), "wb") as copy:
                shutil.copyfileobj(file, copy)
        publish_all(cache, {partial: name})
    except FileNotFoundError:
        return


def append_lines(cache: Path, name: str, lines: Sequence[str], *, is_flushed: bool = False) -> None:
    """Append lines with one write, and flush it if asked to. A line that an earlier kill cut off is removed first."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    _unshare(cache, name)
    with no_space_as_error(cache / name), open(opener.open_file(cache, name, flags), "ab+") as file:
        if end := file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                start = file.seek(max(0, end - opener.MAX_BYTES))
                num_bytes = file.read().rfind(b"\n") + 1
                if start and not num_bytes:
                    raise opener.too_large(cache / name, "a line")
                file.truncate(start + num_bytes)
        file.write("".join(f"{line}\n" for line in lines).encode("ascii"))
        if is_flushed:
            file.flush()
            os.fsync(file.fileno())
