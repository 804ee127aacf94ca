"""Videos and features that leave a cache: by ``build --prune`` and ``--drop``, or since an item fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from chordcache.amounts import counted
from chordcache.building.build_options import BuildOptions
from chordcache.errors import UsageError
from chordcache.storage import atomic, layout, opener
from chordcache.storage.find_sidecars import Sidecars


class Leaving(NamedTuple):
    """The videos and the features that leave a cache with a build."""

    videos: list[str]
    """Keys of the cached videos that the index does not name, if ``options.prune`` is given"""
    features: dict[str, int]
    """Each feature of ``options.drop`` to the number of cached videos that have it"""


def leaving(sidecars: Sidecars, options: BuildOptions, keys: Collection[str]) -> Leaving:
    """Return what leaves a cache with a build of an index, whose keys are ``keys``.

    Raises ``UsageError`` if more videos leave than ``options.prune`` allows.
    """
    videos: list[str] = []
    if options.prune is not None:
        cached = sidecars.sorted_keys()
        videos = [key for key in cached if key not in keys]
        if len(videos) > options.limit("prune", len(cached)):
            raise UsageError(
                f"prune: got an index without {len(videos)} of the {counted(len(cached), 'cached video')}, expected at "
                f"most {options.prune}. Name the others in the index, or raise the number."
            )
    return Leaving(videos, num_with(sidecars, options.drop))


def num_with(sidecars: Sidecars, features: Collection[str]) -> dict[str, int]:
    """Return each of some features to the number of cached videos that have it."""
    counts = Counter[str]()
    for key in sidecars.sorted_keys() if features else ():
        counts.update({info.feature for info in sidecars.read(key).features}.intersection(features))
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


def drop(sidecars: Sidecars, keys: Sequence[str]) -> None:
    """Remove videos: the sidecar first, so that no sidecar names a missing file if the process is killed."""
    files: list[str] = []
    for key in keys:
        sidecar = sidecars.read_or_none(key)  # ``gc`` finds the files of a damaged sidecar
        files += layout.sidecar_file(key), *(file.name for file in (sidecar.files if sidecar else ()))
    for file in files:
        opener.remove(sidecars.cache, file)
