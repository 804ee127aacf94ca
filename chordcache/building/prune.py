"""Videos and features that leave a cache: by ``build --prune`` and ``--drop``, or since an item fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from chordcache.building.build_options import BuildOptions
from chordcache.errors import UsageError
from chordcache.storage import atomic, layout, opener
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Failure

_MAX_SHARE = 0.1
"""Largest share of the cached videos that is dropped without ``prune_many``. A wrong index often names few of them."""


def keys_to_prune(sidecars: Sidecars, keys: Collection[str], options: BuildOptions) -> list[str]:
    """Return the keys of the cached videos that are to be dropped: all but ``keys``, if ``options.prune`` is set.

    Raises ``UsageError`` if they are more than a tenth of the cached videos, and ``options.prune_many`` is not set.
    """
    if not options.prune:
        return []
    cached = sidecars.sorted_keys()
    pruned = [key for key in cached if key not in keys]
    if len(pruned) > _MAX_SHARE * len(cached) and not options.prune_many:
        raise UsageError(
            f"prune: got an index without {len(pruned)} of the {len(cached)} cached videos, expected at least 90 % of "
            "them. If the index is right, add prune_many=True (--yes)."
        )
    return pruned


def videos_with(sidecars: Sidecars, options: BuildOptions) -> dict[str, int]:
    """Return the number of cached videos that have each feature of ``options.drop``.

    Raises ``UsageError`` if they are more than a tenth of the cached videos, and ``options.prune_many`` is not set.
    """
    if not options.drop:
        return {}
    counts, keys = dict.fromkeys(options.drop, 0), sidecars.sorted_keys()
    for key in keys:
        for name in {info.feature for info in sidecars.read(key).features} & counts.keys():
            counts[name] += 1
    many = [name for name, count in counts.items() if count > _MAX_SHARE * len(keys)]
    if many and not options.prune_many:
        raise UsageError(
            f"drop: got '{many[0]}', which {counts[many[0]]} of {len(keys)} cached videos have, expected at most a "
            "tenth of them. If you mean it, add prune_many=True (--yes)."
        )
    return counts


def drop_features(sidecars: Sidecars, names: Collection[str]) -> None:
    """Take features out of all sidecars. ``gc`` removes their files. A video without other features leaves the cache.

    A file of several features is built again without one of them, if the build has its video.
    """
    emptied = []
    for key in sidecars.sorted_keys():
        sidecar = sidecars.read(key)
        shared = {info.file for info in sidecar.features if info.feature not in names and info.file is not None}
        kept = tuple(info for info in sidecar.features if info.feature not in names or info.file in shared)
        if not kept:
            emptied.append(key)
        elif kept != sidecar.features:
            atomic.publish_text(sidecars.cache, layout.sidecar_file(key), sidecar.with_features(kept).to_line() + "\n")
    drop(sidecars, emptied)


def leaves_cache(failure: Failure) -> bool:
    """Return whether a cached video leaves the cache because its item failed. That of a lost source stays."""
    return failure.source is not None and failure.cause == "bucket"


def drop(sidecars: Sidecars, keys: Sequence[str]) -> None:
    """Remove videos: the sidecar first, so that no sidecar names a missing file if the process is killed."""
    files: list[str] = []
    for key in keys:
        sidecar = sidecars.read_or_none(key)  # ``gc`` finds the files of a damaged sidecar
        own = [file.name for file in sidecar.files if file.packed is None] if sidecar else ()
        files += layout.sidecar_file(key), *own
    sidecars.packs.remove(keys)
    for file in files:
        opener.remove(sidecars.cache, file)
