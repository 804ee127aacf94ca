"""Videos and features that leave a cache: by ``build --prune`` and ``--drop``, or since an item fails."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from chordcache.amounts import counted
from chordcache.building.build_options import BuildOptions
from chordcache.errors import UsageError
from chordcache.storage import atomic, layout, opener
from chordcache.storage.find_sidecars import Sidecars
from chordcache.storage.quarantine import Failure

_MAX_SHARE = 0.1
"""Largest share of the cached videos that is dropped without ``prune_many``. A wrong index often names few of them."""


class Leaving(NamedTuple):
    """The videos and the features that leave a cache with a build."""

    videos: list[str]
    """Keys of the cached videos that the index does not name, if ``options.prune`` is set"""
    features: dict[str, int]
    """Each feature of ``options.drop`` to the number of cached videos that have it"""


def leaving(sidecars: Sidecars, options: BuildOptions, keys: Collection[str]) -> Leaving:
    """Return what leaves a cache with a build of an index, whose keys are ``keys``.

    Raises ``UsageError`` if that concerns more than a tenth of the cached videos, and ``options.prune_many`` is not
    set.
    """
    features = dict.fromkeys(options.drop, 0)
    if not (options.prune or options.drop):
        return Leaving([], features)
    cached = sidecars.sorted_keys()
    videos = [key for key in cached if key not in keys] if options.prune else []
    for key in cached if options.drop else ():
        for name in {info.feature for info in sidecars.read(key).features} & features.keys():
            features[name] += 1
    of_features = [("drop", f"'{name}', a feature of", count) for name, count in features.items()]
    for option, what, count in [("prune", "an index without", len(videos)), *of_features]:
        if count > _MAX_SHARE * len(cached) and not options.prune_many:
            raise UsageError(
                f"{option}: got {what} {count} of the {counted(len(cached), 'cached video')}, expected at most a tenth "
                "of them. If you mean it, add prune_many=True (--yes)."
            )
    return Leaving(videos, features)


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
        files += layout.sidecar_file(key), *(file.name for file in (sidecar.files if sidecar else ()))
    for file in files:
        opener.remove(sidecars.cache, file)
