"""The sections of a catalog, made of the sidecars of a cache."""

from __future__ import annotations

import enum
import json
import os
from array import array
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from chordcache.errors import DamageError, printable
from chordcache.json_records import to_json
from chordcache.storage.annotation_names import AnnotationCounter
from chordcache.storage.atomic import no_space_as_error, partial_folder, publish
from chordcache.storage.catalog_file import CATALOG, HEAD_BYTES, write_catalog_file
from chordcache.storage.sidecar import Sidecar

INT32, INT64, UINT64 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<u8")

_RACY_NS = 2 * 10**9
"""Age below which a sidecar may be replaced without another mtime [nanoseconds]: the coarsest clock of a file system"""

_BUFFER_BYTES = 1 << 20


class FeatureState(enum.IntEnum):
    """The state of one feature of a video, in the first tier that has it."""

    NOT_BUILT = 0
    CACHED = 1
    ABSENT = 2
    """Recorded as one that the video does not have"""


class Columns:
    """A collector of the sections of a catalog, video by video in the order of keys."""

    def __init__(self) -> None:
        self._offsets, self._mtimes, self._num_frames = array("q", [HEAD_BYTES]), array("q"), array("i")
        self._contents = array("Q")
        self._keys: list[str] = []
        self._labels: list[str | None] = []
        self._annotations = AnnotationCounter()
        self._states: dict[str, bytearray] = {}
        """States of each feature"""
        self._fingerprints: dict[str, set[str]] = {}

    def add(self, sidecar: Sidecar, num_bytes: int, mtime_ns: int) -> None:
        """Take a sidecar, the size of its line, and the mtime of its file."""
        self._offsets.append(self._offsets[-1] + num_bytes)
        self._mtimes.append(mtime_ns)
        self._num_frames.append(sidecar.num_frames)
        self._contents.append(int((sidecar.content and sidecar.content.content_id[:16]) or "0", 16))
        self._keys.append(sidecar.key)
        self._labels.append(sidecar.about.label)
        self._annotations.add(sidecar.about)
        for info in reversed(sidecar.features):  # of several tiers the first counts, as in ``Sidecar.feature``
            states = self._states.setdefault(info.feature, bytearray())
            states.extend(bytes(self.num_videos - len(states)))
            self._fingerprints.setdefault(info.feature, set()).add(info.fingerprint)
            states[-1] = FeatureState.CACHED if info.absent is None else FeatureState.ABSENT

    @property
    def num_videos(self) -> int:
        """Number of sidecars so far."""
        return len(self._keys)

    def sections(self) -> dict[str, bytes]:
        """Return the content of each section by its name, see docs/format.md."""
        labels = sorted({label for label in self._labels if label is not None})
        ids: dict[str | None, int] = {None: -1, **{label: number for number, label in enumerate(labels)}}
        features = sorted(self._states)
        hashes = np.array([hash_of(key) for key in self._keys], UINT64)
        return {
            "offsets": np.array(self._offsets, INT64).tobytes(),
            "hashes": hashes.tobytes(),
            "order": np.argsort(hashes, kind="stable").astype(INT64).tobytes(),
            "mtimes": np.array(self._mtimes, INT64).tobytes(),
            "num_frames": np.array(self._num_frames, INT32).tobytes(),
            "contents": np.array(self._contents, UINT64).tobytes(),
            "label_ids": np.array([ids[label] for label in self._labels], INT32).tobytes(),
            "states": b"".join(self._states[name].ljust(self.num_videos, b"\0") for name in features),
            "features": _json({name: sorted(self._fingerprints[name]) for name in features}),
            "labels": _json(labels),
            "annotations": _json(to_json(self._annotations.names())),
            "keys": "".join(f"{key}\n" for key in self._keys).encode("ascii"),
        }


def _json(value: object) -> bytes:
    return json.dumps(value).encode("ascii")  # undecodable bytes of file names are escaped


def hash_of(key: str) -> int:
    """Return the hash at the end of a key as a number in [0, 2**64)."""
    return int(key[-16:], 16)


SECTIONS = tuple(Columns().sections())
"""Names of the sections"""


def publish_catalog(cache: Path, rows: Iterable[tuple[Sidecar, bytes, int]]) -> None:
    """Replace the catalog.

    ``rows`` has each sidecar, its line, and the mtime of its file [nanoseconds], in the order of keys. An mtime of 0 is
    that of a file that must be read.
    """
    columns = Columns()
    with partial_folder(cache) as folder:
        path = folder / CATALOG
        with no_space_as_error(path), open(path, "xb", buffering=_BUFFER_BYTES) as file:
            racy_ns = os.fstat(file.fileno()).st_mtime_ns - _RACY_NS
            file.write(bytes(HEAD_BYTES))
            for sidecar, line, mtime_ns in rows:
                file.write(line)
                columns.add(sidecar, len(line), mtime_ns if mtime_ns < racy_ns else 0)
            write_catalog_file(file, columns.num_videos, columns.sections())
        try:
            publish(path, cache / CATALOG)
        except IsADirectoryError:
            raise DamageError(f"'{printable(cache / CATALOG)}' is a folder; move it away") from None
