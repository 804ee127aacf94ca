"""The record of a feature of a video: its request, its files and their shapes, as sidecars hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from chordcache.json_records import Limit, Record


class Packed(Record, frozen=True):
    """The place of a file that lies in a pack."""

    pack: Annotated[str, Limit(pattern=r"^[0-9a-f]{32}\Z")]
    """Name of the pack"""
    offset: Annotated[int, Limit(ge=0, lt=1 << 62)]
    """[bytes] of its first byte in the pack"""


class StoredFile(Record, frozen=True):
    """A file of a cache that holds features of a video."""

    name: str
    """Path relative to the cache"""
    num_bytes: int
    """Size of the file"""
    digest: str
    """xxh3-128 of the file, 32 hex digits"""
    packed: Packed | None = None
    """Place of the file in a pack, or None if it is a file of its own"""


class FeatureInfo(Record, frozen=True):
    """One feature of a video in one tier, as its sidecar names it: the request and the result."""

    feature: str
    tier: str
    fingerprint: str
    """16 hex digits over the extractor's name, version and parameters"""
    params: Mapping[str, Any]
    """Parameters that the fingerprint covers"""
    file: StoredFile | None = None
    """In HDF5, all features of a video share it. None if the feature is absent"""
    shape: tuple[int, ...] = ()
    """Shape of the feature's array. For frames, the decoded shape"""
    dtype: str = ""
    num_rows: Mapping[str, int] = {}
    """Number of rows of each array of the feature. An array's name is the feature's, or begins with it and a dot"""
    facts: Mapping[str, Any] = {}
    """Facts that the extractor found, such as a start time"""
    absent: str | None = None
    """Reason why the video does not have the feature"""
    used: str = ""
    """Hash of the fields of the item that it was made of, such as its caption, or "" for none"""

    @property
    def uses(self) -> Sequence[str]:
        """Fields of the item that it was made of, such as "caption"."""
        return self.params["uses"] if self.used else ()


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested settings, by names with dots."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value
