"""The passport of a cache: a file that says what each video is, with one digest over all of it, for anyone to check.

It is metadata of a dataset in the format of Croissant, version 1.0, whose record set "videos" has a row for each video.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from chordcache.amounts import counted
from chordcache.arguments import names_arguments
from chordcache.engine.choice import Engine
from chordcache.engine.display import Display
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.json_records import FINITE_JSON, Record, from_json, to_json
from chordcache.media.source_file import open_source
from chordcache.read.cache import open_cache
from chordcache.read.selection import Videos, select_keys
from chordcache.read.video import Video
from chordcache.storage.atomic import new_file
from chordcache.storage.cache_header import read_header, roots_now
from chordcache.storage.layout import check_output
from chordcache.verifying.findings import Damage
from chordcache.verifying.verify import verify

_FORMAT_VERSION = 1

_TERMS = (
    "citeAs column data dataType examples extract field fileObject fileProperty fileSet format includes isLiveDataset "
    "jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate separator source "
    "subField transform"
).split()
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{term: f"cr:{term}" for term in _TERMS},
    "chordcache": {"@id": "sc:identifier", "@type": "@json"},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
"""The context of Croissant 1.0, with the member "chordcache" """

_KINDS = {"num_frames": "sc:Integer", "seconds": "sc:Float"}
"""Croissant type of each field of a row that is not text"""


class PassportRow(Record, frozen=True, rename="videos/{}".format):
    """The facts of one video. All but ``sha256`` are part of the root."""

    key: str
    root: str
    """Label of the root folder"""
    path: str
    content_id: str
    """Digest of all decoded pictures and their times. A remux keeps it"""
    num_frames: int
    """Number of cached frames"""
    seconds: float
    features: str
    """JSON of each feature and the fingerprint of its settings, or the reason why the video does not have it"""
    statements: str
    """JSON of the labels, the captions, the further columns of the index and the segment"""
    splits: str
    """JSON of the names of its splits"""
    sha256: str
    """SHA-256 of the source [64 hex digits], or "" if the sources were not read"""


class _RecordSet(Record, frozen=True, forbid_unknown_fields=False):
    data: tuple[PassportRow, ...]


class _Facts(Record, frozen=True):
    """The member "chordcache" of a passport, beside those of Croissant."""

    format_version: int
    root: str
    splits: Mapping[str, str]
    """SHA-256 of the keys of each split, sorted"""
    findings: Mapping[str, int] | None = None


class _Document(Record, frozen=True, forbid_unknown_fields=False):
    recordSet: tuple[_RecordSet]
    chordcache: _Facts


@dataclass(frozen=True)
class Passport:
    """The facts of all videos of a cache."""

    rows: Mapping[str, PassportRow]
    """Row of each video by its key, sorted"""
    findings: Mapping[str, int] | None = None
    """Counts of the findings of ``verify`` with ``source=True``, such as ``num_stale``. None if it did not run"""

    @cached_property
    def root(self) -> str:
        """SHA-256 over the rows, without ``sha256`` [64 hex digits]."""
        return _sha256(json.dumps(to_json(row.replace(sha256="")), sort_keys=True) for row in self.rows.values())

    @property
    def splits(self) -> dict[str, str]:
        """SHA-256 of the sorted keys of each split [64 hex digits]."""
        keys = defaultdict(list)
        for row in self.rows.values():
            for name in from_json(json.loads(row.splits), tuple[str, ...]):
                keys[name].append(row.key)
        return {name: _sha256(keys[name]) for name in sorted(keys)}

    def write(self, path: str | Path) -> None:
        """Write the passport. Equal passports give equal bytes. Raises as ``new_file`` does."""
        facts = _Facts(_FORMAT_VERSION, self.root, self.splits, self.findings)
        kinds = {f"videos/{name}": _KINDS.get(name, "sc:Text") for name in PassportRow.__struct_fields__}
        fields = [{"@type": "cr:Field", "@id": name, "name": name, "dataType": kind} for name, kind in kinds.items()]
        videos = {"@type": "cr:RecordSet", "@id": "videos", "name": "videos", "key": {"@id": "videos/key"}}
        document = {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "conformsTo": "http://mlcommons.org/croissant/1.0",
            "name": "chordcache-passport",
            "description": f"Identity of {counted(len(self.rows), 'video')}, root {self.root}",
            "chordcache": to_json(facts),
            "recordSet": [{**videos, "field": fields, "data": [to_json(row) for row in self.rows.values()]}],
        }
        with new_file(Path(path), "output: cannot write") as file:
            file.write(f"{json.dumps(document, indent=1)}\n".encode())

    def differences(self, other: Passport) -> Iterator[tuple[str, str]]:
        """Yield the key of each video that is not the same in another passport, and how it differs, for people."""
        for key in sorted({*self.rows, *other.rows}):
            mine, others = self.rows.get(key), other.rows.get(key)
            if mine is None or others is None:
                yield key, "is not in the cache" if mine is None else "is not in the passport"
                continue
            got, expected = _facts(mine), _facts(others)
            for name in sorted({*got, *expected}):
                if got.get(name) != expected.get(name) and (name != "sha256" or (mine.sha256 and others.sha256)):
                    yield key, f"{name}: got {got.get(name, 'none')}, expected {expected.get(name, 'none')}"


def _facts(row: PassportRow) -> dict[str, object]:
    """Return the facts of a video by name, each feature and each statement for itself."""
    facts = {name: getattr(row, name) for name in PassportRow.__struct_fields__}
    parts = [from_json(json.loads(facts.pop(name)), dict[str, object]) for name in ("features", "statements")]
    return {**facts, **parts[0], **parts[1]}


def read_passport(path: str | Path) -> Passport:
    """Read a passport. Raise ``DamageError`` if it was edited or cut, ``UsageError`` if it is another kind of file."""
    what = f"passport: got '{printable(path)}'"
    try:
        document = from_json(FINITE_JSON.decode(Path(path).read_text("utf-8")), _Document)
        rows = document.recordSet[0].data
        passport = Passport({row.key: row for row in rows}, document.chordcache.findings)
        facts = passport.root, passport.splits, len(passport.rows)
        deque(map(_facts, rows), maxlen=0)
    except OSError as error:
        raise NotFoundError(f"{what}, which cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{what}, which is not a whole passport ({error}), expected one of 'chordcache passport'"
        ) from None
    if document.chordcache.format_version != _FORMAT_VERSION:
        raise UsageError(f"{what} of format {document.chordcache.format_version}, expected {_FORMAT_VERSION}")
    if facts != (document.chordcache.root, document.chordcache.splits, len(rows)):
        raise DamageError(
            f"{what} with the root {document.chordcache.root}, but its rows have {facts[0]}. It was edited."
        )
    return passport


@names_arguments
def passport(
    cache: str | Path,
    output: str | Path | None = None,
    *,
    splits: Mapping[str, Videos] = MappingProxyType({}),
    source: bool = False,
    jobs: int | Engine | None = None,
    roots: Mapping[str, str] | None = None,
    progress: bool | Display = False,
) -> Passport:
    """Make the passport of a cache: its contents, settings, labels and splits, and one digest over all of them.

    The same names, contents, settings, labels and splits give the same root on any machine, also if the cache was built
    in parts, merged or packed.

    Parameters
    ----------
    cache : str or Path
        The cache.
    output : str or Path, optional
        File to write, for ``read_passport``.
    splits : mapping of str to videos, optional
        Name of each split to its videos, as ``videos`` of ``chordcache.videos.cached``.
    source : bool
        True to add the SHA-256 of the sources, and the findings of ``verify`` with ``source=True``.
    jobs, roots, progress
        As in ``verify``.

    Raises
    ------
    UsageError
        If a video was built without a ``content_id``, if ``output`` lies in a cache, or as ``chordcache.videos.cached``
        does.
    MediaError
        If a source cannot be read.
    """
    if output is not None:
        check_output("output", output)
    findings = None
    if source:
        findings = verify(cache, source=True, jobs=jobs, roots=roots, progress=progress).counts()
    with open_cache(cache) as opened:
        names: dict[str, list[str]] = defaultdict(list)
        for name in sorted(splits):
            for key in set(select_keys(opened, splits[name])):
                names[key].append(name)
        header = read_header(opened.path)
        folders = roots_now(header.roots, roots, opens=source)
        rows = [_row(video, names[video.key], folders if source else None) for video in opened]
    whole = Passport({row.key: row for row in sorted(rows, key=lambda row: row.key)}, findings)
    if output is not None:
        whole.write(output)
    return whole


def check_against(cache: str | Path, expected: Passport, splits: Mapping[str, Videos]) -> list[Damage]:
    """Return the differences of a cache from a passport, as findings. Splits are compared if they are given."""
    got = passport(cache, splits=splits)
    if not splits:
        expected = Passport({key: row.replace(splits="[]") for key, row in expected.rows.items()})
    return [
        Damage("another", got.rows[key].path if key in got.rows else expected.rows[key].path, what, "", key)
        for key, what in got.differences(expected)
    ]


def _row(video: Video, splits: list[str], folders: Mapping[str, str] | None) -> PassportRow:
    if video.content is None or not video.content.content_id:
        raise UsageError(f"'{printable(video.path)}': got a video without a content_id, expected one. Build it again.")
    digest = ""
    if folders is not None:
        with open_source(os.path.join(folders[video.root], video.path)) as opened, open(opened.place, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    features = {info.feature: info.absent or info.fingerprint for info in video.sidecar.features}
    return PassportRow(
        key=video.key,
        root=video.root,
        path=video.path,
        content_id=video.content.content_id,
        num_frames=video.num_frames,
        seconds=round(video.duration_seconds, 6),
        features=json.dumps(features, sort_keys=True),
        statements=json.dumps(to_json(video.sidecar.about), sort_keys=True),
        splits=json.dumps(splits),
        sha256=digest,
    )


def _sha256(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\n")
    return digest.hexdigest()
