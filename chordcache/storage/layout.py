"""The names of the files of a cache. No other module makes final names.

A cache is a folder::

    chordcache.json                 format version, resolved config, roots, tool versions
    index.jsonl                     the records of every build so far
    videos/ab/<key>.json            sidecar of one video: replacing it is the commit
    lmdb/ab/<key>.frames.<gen>.lmdb frames of one video
    npz/ab/<key>.flow.<gen>.npz     one feature of it
    hdf5/ab/<key>.<gen>.h5          frames and features, for programs that read several together
    packs/<digest>.pack             files of many videos in one file, of a packed cache, see ``packs``
    catalog.bin                     all sidecars, and columns of them
    quarantine.jsonl                one line per input that could not be cached
    runs.jsonl                      one line per build, verify, repair, merge and gc
    .partial/<machine>-<pid>-<uuid> a file or a folder of files that a worker is writing
    .partial/<key>.lock             locked by a reader's child that builds the video

``ab`` begins the key's hash.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from chordcache.arguments import absolute
from chordcache.digests import hex64
from chordcache.errors import UsageError, printable
from chordcache.json_records import to_json
from chordcache.records import Identity, Segment, VideoRecord
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.feature_info import StoredFile

PACKS = "packs"
"""Name of the folder of packs in a packed cache"""

_SLUG_LENGTH = 40
_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]+-[0-9a-f]{16}")
_OTHER_LETTERS = re.compile(r"[^A-Za-z0-9_]+")
_ARTEFACTS = {
    name: re.compile(
        rf"{name}/(?P<fan>[0-9a-f]{{2}})/(?P<key>[A-Za-z0-9_-]+-(?P=fan)[0-9a-f]{{14}})"
        + ("" if tier.one_file else r"\.[a-z][a-z0-9_]{0,39}")
        + rf"\.[0-9a-f]{{8}}{re.escape(tier.suffix)}"
    )
    for name, tier in TIERS.items()
}
"""Tier to the names of its files, relative to the cache"""


def check_local(name: str, path: str | os.PathLike[str]) -> None:
    """Raise ``UsageError`` if a path is a URL. It would become a folder "s3:" in the working folder."""
    if "://" in os.fspath(path):
        raise UsageError(
            f"{name}: got '{printable(path)}', expected a path on a mounted disk. Copy between an object store and a "
            "disk with 'chordcache push' and 'chordcache pull', or read one there by open_cache(URL, local=FOLDER)."
        )


def cache_folder(path: str | os.PathLike[str], name: str = "cache") -> Path:
    """Return the folder of a cache that a person named, in the one spelling. Raises ``UsageError`` for a URL."""
    check_local(name, path)
    return absolute(path)


def check_output(name: str, path: str | os.PathLike[str]) -> None:
    """Raise ``UsageError`` if an output is a URL, or lies in a cache, whose lists it may replace."""
    check_local(name, path)
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.exists(os.path.join(folder, "chordcache.json")):
        if folder == (folder := os.path.dirname(folder)):
            return
    raise UsageError(
        f"{name}: got '{printable(path)}', which is inside the cache '{printable(folder)}', expected one outside of "
        "it. Name another folder."
    )


def video_key(root: str, path: str, segment: Segment | None = None) -> str:
    """Return the name of a video in a cache: a readable slug and 16 hex digits.

    The digits are a hash of the root's label, the raw bytes of the path, and the segment if there is one.
    """
    return f"{key_slug(path)}-{key_hash(root, path, segment)}"


def key_hash(root: str, path: str, segment: Segment | None = None) -> str:
    """Return the 16 hex digits at the end of a key. They suffice to find the key among others."""
    raw = root.encode("utf-8", "surrogateescape") + b"\0" + os.fsencode(path)
    if segment is not None:
        raw += b"\0" + str(segment).encode()
    return hex64(raw)


def key_slug(path: str) -> str:
    """Return the readable part of the keys of a file and its segments. Other files may have the same."""
    stem = path.rpartition("/")[2].rsplit(".", 1)[0]
    return _OTHER_LETTERS.sub("-", stem).strip("-")[:_SLUG_LENGTH] or "video"


def key_of(record: VideoRecord) -> str:
    """Return the key of the item of an index."""
    return video_key(record.root, record.path, record.segment)


def is_key(text: str) -> bool:
    """Return whether ``video_key`` could have made ``text``."""
    return _KEY_PATTERN.fullmatch(text) is not None


def key_of_artefact(tier: str, file: str) -> str | None:
    """Return the key in the name of a file, or None if ``artefact_file`` could not have made the name."""
    match = _ARTEFACTS[tier].fullmatch(file) if tier in TIERS else None
    return match["key"] if match is not None else None


def fan_of(key: str) -> str:
    """Return the name of the folder of a video's files, in the folders of sidecars and of tiers."""
    return key[-16:-14]


def sidecar_file(key: str) -> str:
    """Return the name of the sidecar of a video, relative to the cache."""
    return f"videos/{fan_of(key)}/{key}.json"


def pack_file(pack: str) -> str:
    """Return the name of a pack, relative to the cache."""
    return f"{PACKS}/{pack}.pack"


def place_of(file: StoredFile) -> tuple[str, int]:
    """Return the name of the file or the pack that has the bytes of a file, relative to the cache, and the first."""
    return (file.name, 0) if file.packed is None else (pack_file(file.packed.pack), file.packed.offset)


def artefact_file(
    tier: str, key: str, fingerprints: Mapping[str, str], source: Identity, ctime_ns: int, digest: str
) -> str:
    """Return the relative name of an artefact. Other content gives another generation and name.

    Two processes may build one video at the same time, on processors that round flow differently. Each sidecar then
    names the file that belongs to it. The fingerprints are those of the features in the file, by name. The ctime of the
    source differs if it was edited under the same identity. ``digest`` is the xxh3-128 of the file, 32 hex digits.
    """
    generation = hex64(json.dumps([sorted(fingerprints.values()), to_json(source), ctime_ns, digest]).encode())[:8]
    feature = "" if TIERS[tier].one_file else f".{next(iter(fingerprints))}"
    return f"{tier}/{fan_of(key)}/{key}{feature}.{generation}{TIERS[tier].suffix}"


def path_problem(path: object) -> str | None:
    """Return the reason why a path from an index or a sidecar cannot lie inside its root, or None if it can."""
    if not isinstance(path, str) or not path:
        return "it is empty"
    if "\0" in path:
        return "it contains NUL"
    if path.startswith("/"):
        return "it is absolute"
    if ".." in path.split("/"):
        return "it contains '..'"
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return "it is not a file name"
    return None
