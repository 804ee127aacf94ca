"""The on-disk format: names, sealed JSON, digests, sidecars and the atomic publish. No other module makes final names.

A cache is a folder::

    chordcache.json                 format version, resolved config, roots, tool versions
    index.jsonl                     the records of every build so far
    videos/ab/<key>.json            sidecar of one video: replacing it is the commit
    lmdb/ab/<key>.<gen>.lmdb        frames of one video
    npz/ab/<key>.<gen>.npz          its features
    hdf5/ab/<key>.<gen>.h5          frames and features, for programs that read several together
    catalog.sqlite                  derived from the sidecars
    quarantine.jsonl                one line per input that could not be cached
    .partial/<host>-<pid>-<uuid>/   files that a worker is writing
    .on_demand/                     videos that readers ask to be built

``ab`` begins the key's hash. Each JSON line ends with its ``"xxh3_128"``, so that readers detect a flipped bit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chordcache.digests import hex64, hex128
from chordcache.errors import DamageError, FormatVersionError, NoSpaceError, NotFoundError
from chordcache.records import (
    ContentFacts,
    FeatureInfo,
    Identity,
    content_from_json,
    feature_from_json,
    path_problem,
    to_json,
)

FORMAT_VERSION = 1
"""Version of the format. It is raised when an older reader would misread what is written now."""

TIER_SUFFIXES = {"lmdb": ".lmdb", "npz": ".npz", "hdf5": ".h5"}
"""File suffix of each tier's artefacts."""

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that takes no more data: full, quota used up, file size limit, turned read-only by an error."""

MIN_FREE_BYTES = 1 << 20
"""Free space below which no video is begun: a small video and the cache's own lists need that much [bytes]."""

_SEAL = ', "xxh3_128": "'
_SLUG_LENGTH = 40


# Sealed JSON


def fingerprint(name: str, version: int, params: Mapping[str, Any]) -> str:
    """Return 16 hex digits that change if the extractor, its version or a parameter changes."""
    return hex64(json.dumps([name, version, dict(params)], sort_keys=True).encode())


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
        raise FormatVersionError(
            f"'{printable(source)}' has format version {version}, this chordcache reads {FORMAT_VERSION}; "
            "use the chordcache that wrote it"
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


# Names


def printable(name: str | Path) -> str:
    """Return a file's name for people and terminals, with control characters and undecodable bytes escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(name))


def video_key(root: str, path: str) -> str:
    """Return the name of a video in a cache: a readable slug and 16 hex digits over (root label, raw path bytes)."""
    stem = os.path.basename(path).rsplit(".", 1)[0]
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-")[:_SLUG_LENGTH] or "video"
    raw = root.encode("utf-8", "surrogateescape") + b"\0" + os.fsencode(path)
    return f"{slug}-{hex64(raw)}"


def is_key(text: str) -> bool:
    """Return whether ``video_key`` could have made ``text``."""
    return re.fullmatch(r"[A-Za-z0-9_-]+-[0-9a-f]{16}", text) is not None


def is_artefact_file(tier: str, file: str) -> bool:
    """Return whether ``artefact_file`` could have made ``file``."""
    key, _, rest = os.path.basename(file).partition(".")
    name = f"{tier}/{_fan(key)}/{key}.{rest}"
    return is_key(key) and file == name and re.fullmatch(rf"[0-9a-f]{{8}}{TIER_SUFFIXES[tier]}", rest) is not None


def _fan(key: str) -> str:
    return key[-16:-14]


def sidecar_path(cache: Path, key: str) -> Path:
    """Return the path of the sidecar of a video."""
    return cache / "videos" / _fan(key) / f"{key}.json"


def artefact_file(tier: str, key: str, fingerprints: list[str], source: Identity) -> str:
    """Return the relative name of an artefact. Other parameters or another source give another generation and name."""
    generation = hex64(json.dumps([fingerprints, to_json(source)]).encode())[:8]
    return f"{tier}/{_fan(key)}/{key}.{generation}{TIER_SUFFIXES[tier]}"


# Sidecars


@dataclass(frozen=True)
class Sidecar:
    """The commit record of one video."""

    key: str
    root: str
    path: str
    source: Identity
    num_frames: int
    width: int
    """[pixels] of the cached frames"""
    height: int
    """[pixels] of the cached frames"""
    start_seconds: float
    """[seconds] presentation time of the first cached frame"""
    duration_seconds: float
    """[seconds] to the end of the last cached frame"""
    clock: str
    features: tuple[FeatureInfo, ...]
    label: str | None = None
    caption: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    num_frames_skipped: int = 0
    """Frames of the source before the first frame that can be decoded"""
    notes: tuple[str, ...] = ()
    """Changes to the picture that the numbers of the sidecar do not show"""
    content: ContentFacts | None = None
    """Motion of the picture and loudness of the sound"""
    source_hash: str | None = None
    """xxh3-128 of the source's bytes, 32 hex digits, or None if no build was asked for it"""

    def feature(self, name: str, tier: str | None = None) -> FeatureInfo | None:
        """Return the entry of a feature, in ``tier`` or in the first tier that holds the feature."""
        return next((f for f in self.features if f.feature == name and tier in (None, f.tier)), None)

    def to_line(self) -> str:
        """Return the sealed line that is the content of the sidecar's file."""
        return seal({"format_version": FORMAT_VERSION, **to_json(self)})

    def _check_names(self) -> None:
        """Raise ``TypeError`` if it names a file outside its cache, or a source outside its root."""
        if problem := path_problem(self.path):
            raise TypeError(f"a path that cannot be used: {problem}")
        for info in self.features:
            if info.file is not None and not (
                is_artefact_file(info.tier, info.file) and os.path.basename(info.file).startswith(f"{self.key}.")
            ):
                raise TypeError("a file that is not one of its video's")

    @classmethod
    def from_line(cls, line: str, source: str) -> Sidecar:
        """Read a sidecar's line. Raises as ``unseal`` does."""
        data = unseal(line, source)
        try:
            del data["format_version"]
            data["source"] = Identity(**data["source"])
            data["features"] = tuple(feature_from_json(f) for f in data["features"])
            data["notes"] = tuple(data.get("notes", ()))
            data["content"] = content_from_json(data.get("content"))
            sidecar = cls(**data)
            if not all(
                type(n) is int and 0 <= n < 1 << 31 for n in (sidecar.num_frames, sidecar.width, sidecar.height)
            ):
                raise TypeError("a count is not a number from 0 to 2**31 - 1")
            sidecar._check_names()
            return sidecar
        except (KeyError, TypeError, AttributeError) as error:
            raise DamageError(f"'{printable(source)}' is damaged: it is not a sidecar ({error})") from None


def read_sidecar(cache: Path, key: str) -> Sidecar:
    """Read one sidecar.

    Raises
    ------
    NotFoundError
        If the video is not cached.
    DamageError, FormatVersionError
        As in ``unseal``.
    """
    path = sidecar_path(cache, key)
    try:
        line = path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise NotFoundError(f"video '{key}' is not in cache '{printable(cache)}'") from None
    except UnicodeDecodeError:
        raise DamageError(f"'{printable(path)}' is damaged: it is not ASCII") from None
    sidecar = Sidecar.from_line(line, str(path))
    if sidecar.key != key:
        raise DamageError(f"'{printable(path)}' is damaged: it is the sidecar of '{sidecar.key}'")
    return sidecar


def iter_keys(cache: Path) -> Iterator[str]:
    """Yield the keys of all videos that have a sidecar, sorted within each of the 256 folders."""
    for folder in sorted((cache / "videos").glob("[0-9a-f][0-9a-f]")):
        for name in sorted(os.listdir(folder)):
            key = name.removesuffix(".json")
            if key != name and is_key(key) and sidecar_path(cache, key) == folder / name:
                yield key


# Publishing


@contextmanager
def no_space_as_error(path: str | Path) -> Iterator[None]:
    """Turn the OSError of a full disk into ``NoSpaceError``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NoSpaceError) or error.errno not in NO_SPACE:
            raise
        raise no_space(f"{os.strerror(error.errno).lower()} at", path) from None


def no_space(what: str, path: str | Path) -> NoSpaceError:
    """Return the error of a full disk. It states the free space of the disk that holds or will hold ``path``."""
    status = _disk_of(Path(path))
    free, total = (count * status.f_frsize / 2**20 for count in (status.f_bavail, status.f_blocks))
    room = f"{free:.1f} of {total:.1f} MiB are free"
    return NoSpaceError(f"{what} '{printable(path)}' ({room}); make room and run the same command")


def check_space(cache: Path) -> None:
    """Raise ``NoSpaceError`` if a disk is so full that not even one small artefact fits.

    Only a certain result raises. The blocks reserved for root count as free. A disk that states no size (some disks
    behind FUSE) counts as having free space.
    """
    status = _disk_of(cache)
    if status.f_blocks and status.f_bfree * status.f_frsize < MIN_FREE_BYTES:
        raise no_space("no space left for cache", cache)


def _disk_of(path: Path) -> os.statvfs_result:
    while not path.exists() and path != path.parent:
        path = path.parent
    return os.statvfs(path)


@contextmanager
def partial_folder(cache: Path) -> Iterator[Path]:
    """Yield a private folder to write in. It is always removed at the end."""
    folder = cache / ".partial" / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
    with no_space_as_error(folder):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_partials(cache: Path) -> None:
    """Remove the partial folders of killed processes. Call it only under the cache's lock."""
    shutil.rmtree(cache / ".partial", ignore_errors=True)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Their names are durable, and so are the files that are published inside."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _fsync(folder.parent)


def publish(partial: Path, final: Path) -> None:
    """Give a closed file its final name. The file appears complete or not at all, also after a power cut."""
    with no_space_as_error(final):
        make_folder(final.parent)
        _fsync(partial)
        os.replace(partial, final)
        _fsync(final.parent)


def publish_text(cache: Path, path: Path, text: str) -> None:
    """Replace a small file of a cache atomically."""
    with no_space_as_error(path), partial_folder(cache) as folder:
        partial = folder / path.name
        partial.write_text(text, encoding="ascii")
        publish(partial, path)


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
