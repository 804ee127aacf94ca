"""``build --prune``: drop the videos of a cache that the index does not name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from chordcache.errors import DamageError, NotFoundError, UsageError
from chordcache.pipeline.keep_damaged import is_allowed
from chordcache.pipeline.options import BuildOptions
from chordcache.storage import layout
from chordcache.storage.readable import exists
from chordcache.storage.sidecar import read_sidecar

_MAX_SHARE = 0.1
"""Largest share of the cached videos that is dropped without ``prune_many``. A wrong index often names few of them."""


def keys_to_prune(cache: Path, keys: Collection[str], options: BuildOptions) -> list[str]:
    """Return the keys of the cached videos that are to be dropped: all but ``keys``, if ``options.prune`` is set.

    Raises
    ------
    UsageError
        If they are more than a tenth of the cached videos, and ``options.prune_many`` is not set.
    """
    if not options.prune:
        return []
    cached = list(layout.iter_keys(cache))
    pruned = [key for key in cached if key not in keys]
    if len(pruned) > _MAX_SHARE * len(cached) and not options.prune_many:
        raise UsageError(
            f"prune: got an index without {len(pruned)} of the {len(cached)} cached videos, expected at least 90 % of "
            "them. If the index is right, add prune_many=True (--yes)."
        )
    return pruned


def drop_if_not_allowed(cache: Path, key: str, on_damage: str) -> None:
    """Remove a video that cannot be cached, if it is cached as another choice for damaged files said."""
    if not exists(layout.sidecar_path(cache, key)):
        return
    with suppress(DamageError, NotFoundError):
        if not is_allowed(read_sidecar(cache, key), on_damage):
            drop(cache, [key])


def drop(cache: Path, keys: Sequence[str]) -> None:
    """Remove videos: the sidecar first, so that no sidecar names a missing file if the process is killed."""
    for key in keys:
        files: set[str] = set()
        with suppress(DamageError, NotFoundError):  # ``gc`` finds the files of a damaged sidecar
            files = {info.file for info in read_sidecar(cache, key).features if info.file}
        layout.sidecar_path(cache, key).unlink(missing_ok=True)
        for file in files:
            (cache / file).unlink(missing_ok=True)
