"""The tiers: the names of their files, and the modules that write and read these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chordcache.errors import UsageError, printable


@dataclass(frozen=True)
class Tier:
    """A store of the cache. A new one needs an entry in ``TIERS``, a module, and its features in ``Config``."""

    suffix: str
    """Suffix of its files"""
    writer: str
    """"module:Class" of its ``ArtefactWriter``. The module is imported only if the tier is used"""
    artefact: str
    """"module:Class" of its ``Artefact``"""
    one_file: bool = False
    """True if all features of a video share a file. Otherwise each has its own"""


KINDS = "biufcS"
"""Kinds of dtype that are stored: booleans, numbers, and bytes of a fixed length."""

DIGESTS = ".xxh3_64"
"""Suffix of the name of the whole array that holds a streamed array's digests."""

OFFSETS = ".offsets"
"""Suffix of the name of the array that says where each record begins, in a store that keeps records in one array."""

_STORES = "chordcache.storage.artefacts"

TIERS: Mapping[str, Tier] = {
    "lmdb": Tier(
        suffix=".lmdb",
        writer=f"{_STORES}.lmdb_writer:LmdbArtefactWriter",
        artefact=f"{_STORES}.lmdb_reader:LmdbArtefact",
    ),
    "npz": Tier(
        suffix=".npz",
        writer=f"{_STORES}.array_writer:NpzArtefactWriter",
        artefact=f"{_STORES}.array_file:ArrayFile",
    ),
    "hdf5": Tier(
        suffix=".h5",
        writer=f"{_STORES}.hdf5_writer:Hdf5ArtefactWriter",
        artefact=f"{_STORES}.array_file:ArrayFile",
        one_file=True,
    ),
}
"""Name of each tier to the tier, in the order in which readers look for a feature."""


def tier_of(path: Path) -> Tier:
    """Return the tier that a file belongs to by its suffix. Raises ``UsageError``."""
    for tier in TIERS.values():
        if path.suffix == tier.suffix:
            return tier
    suffixes = ", ".join(tier.suffix for tier in TIERS.values())
    raise UsageError(f"'{printable(path)}': got the suffix '{path.suffix}', expected one of {suffixes}.")
