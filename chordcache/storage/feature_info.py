"""The record of a feature of a video: its request, its files and their shapes, as sidecars hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from chordcache.json_records import Limit, Record


class Packed(Record, frozen=True):
    """The place of a file that lies in a pack."""

    pack: Annotated[str, Limit(pattern=r"^[0-9a-f]{32}\Z")]
    """Name of the pack"""
    offset: Annotated[int, Limit(ge=0, lt=1 << 62)]
    """[bytes] of its first byte in the pack"""


class FeatureInfo(Record, frozen=True):
    """One feature of a video in one tier, as its sidecar names it: the request and the result."""

    feature: str
    tier: str
    fingerprint: str
    """16 hex digits over the extractor's name, version and parameters"""
    params: Mapping[str, Any]
    """Parameters that the fingerprint covers"""
    file: str | None = None
    """Path relative to the cache. In HDF5, all features of a video share it. None if the feature is absent"""
    shape: tuple[int, ...] = ()
    """Shape of the feature's array. For frames, the decoded shape"""
    dtype: str = ""
    num_bytes: int = 0
    """Size of the file"""
    digest: str = ""
    """xxh3-128 of the file, 32 hex digits"""
    num_rows: Mapping[str, int] = {}
    """Number of rows of each array of the feature. An array's name is the feature's, or begins with it and a dot"""
    facts: Mapping[str, Any] = {}
    """Facts that the extractor found, such as a start time"""
    absent: str | None = None
    """Reason why the video does not have the feature"""
    uses: tuple[str, ...] = ()
    used: str = ""
    """Hash of the fields ``uses`` of the item that it was made of, such as "caption", see ``features.item_fields``"""
    packed: Packed | None = None
    """Place of the file in a pack, or None if it is a file of its own"""


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in nested settings, by names with dots."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}" if name else str(key), inner)
    else:
        yield name, value
