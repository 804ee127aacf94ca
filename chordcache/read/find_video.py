"""The video that a person means: a key, the beginning of one, or a path."""

from __future__ import annotations

import os

from chordcache.errors import NotFoundError, printable
from chordcache.read.cache import Cache
from chordcache.read.near_keys import hint_for, keys_at_path
from chordcache.read.video import Video

_MAX_MATCHES = 10
"""Number of matching keys in a message"""


def find_video(cache: Cache, video: str | os.PathLike[str]) -> Video:
    """Find a video of a cache by what a person writes.

    Parameters
    ----------
    cache : Cache
        The cache.
    video : str or path
        A key, a path as in the index (relative to its root), a path on the disk, or the beginning of one key. They
        are tried in this order.

    Raises
    ------
    NotFoundError
        If no video matches, or several do. The message lists near or matching keys.
    DamageError
        If the catalog is damaged.
    """
    name = os.fspath(video)
    if name in cache:
        return cache[name]
    keys = keys_at_path(cache.catalog, name)
    if not keys and name:
        keys = cache.catalog.keys_from(name, _MAX_MATCHES + 1)
    if len(keys) == 1:
        return cache[keys[0]]
    where = f"video: got '{printable(name)}', expected"
    if keys:
        more = " and more" if len(keys) > _MAX_MATCHES else ""
        raise NotFoundError(f"{where} the name of one video. Matching keys: {', '.join(keys[:_MAX_MATCHES])}{more}.")
    raise NotFoundError(
        f"{where} a key, the beginning of a key, or the path of a video of {cache!r}. {hint_for(cache.catalog, name)}"
    )
