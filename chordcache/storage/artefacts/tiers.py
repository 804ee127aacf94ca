"""The tiers: where each keeps which features, and the modules that write and read its files."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chordcache.arguments import did_you_mean
from chordcache.errors import ConfigError, UsageError, printable

if TYPE_CHECKING:  # reading a cache does not load the parser of YAML
    from chordcache.config.config import Config


@dataclass(frozen=True)
class Tier:
    """A store of the cache. A new one needs an entry in ``TIERS`` and a module of its own."""

    suffix: str
    """Suffix of its files"""
    writer: str
    """"module:Class" of its ``ArtefactWriter``. The module is imported only if the tier is used"""
    artefact: str
    """"module:Class" of its ``Artefact``"""
    features: Callable[[Config], tuple[str, ...]]
    """Function that returns the features that a config puts into the tier"""
    options: Callable[[Config], Mapping[str, Any]] = lambda _config: {}
    """Function that returns the writer's keyword arguments"""
    one_file: bool = False
    """True if all features of a video share a file. Otherwise each has its own"""
    is_flat: bool = True
    """True if files are read by position, so that threads and forked processes can share an open one"""


def _listed(config: Config) -> tuple[str, ...]:
    for name in config.hdf5.features:
        if name not in config.names():
            similar = did_you_mean(name, config.names()) or "."
            raise ConfigError(f"hdf5.features: got '{name}', expected some of {', '.join(config.names())}{similar}")
    return config.hdf5.features


def _lmdb_options(config: Config) -> Mapping[str, Any]:
    settings = config.frames.codec_settings if config.frames else {}
    return {name: settings[name] for name in ("gop", "stride") if name in settings}


_STORES = "chordcache.storage.artefacts"

TIERS: Mapping[str, Tier] = {
    "lmdb": Tier(
        suffix=".lmdb",
        writer=f"{_STORES}.lmdb_writer:LmdbArtefactWriter",
        artefact=f"{_STORES}.lmdb_reader:LmdbArtefact",
        features=lambda config: ("frames",) if config.frames else (),
        options=_lmdb_options,
    ),
    "npz": Tier(
        suffix=".npz",
        writer=f"{_STORES}.npz_store:NpzArtefactWriter",
        artefact=f"{_STORES}.npz_store:NpzArtefact",
        features=lambda config: tuple(config.features),
    ),
    "hdf5": Tier(
        suffix=".h5",
        writer=f"{_STORES}.hdf5_store:Hdf5ArtefactWriter",
        artefact=f"{_STORES}.hdf5_store:Hdf5Artefact",
        features=_listed,
        options=lambda config: {"compression": config.hdf5.compression, "chunk_frames": config.hdf5.chunk_frames},
        one_file=True,
        is_flat=False,
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


def load(place: str) -> Any:
    """Return the class that "module:Class" names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
