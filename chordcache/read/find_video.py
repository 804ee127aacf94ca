"""The video that a person means: a key, the beginning of one, or a path."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from chordcache.errors import NotFoundError, printable
from chordcache.read.cache import Cache
from chordcache.read.video import Video
from chordcache.storage.cache_header import read_header
from chordcache.storage.layout import key_slug

_MAX_NEAR = 5
"""Number of near keys in a message"""

_MAX_MATCHES = 10
"""Number of matching keys in a message"""

_MAX_COMPARED = 5000
"""Keys before and after the name that are compared with it. Comparing a million takes a minute"""

_HASH_LENGTH = 17
"""Letters of a key after its readable part: a hyphen and 16 digits"""


def find_video(cache: Cache, video: str | os.PathLike[str]) -> Video:
    """Find a video of a cache by what a person writes.

    Parameters
    ----------
    cache : Cache
        The cache.
    video : str or path
        A key, a path as in the index (relative to its root), a path on the disk, or the beginning of one key. They
        are tried in this order.

    Returns
    -------
    Video

    Raises
    ------
    NotFoundError
        If no video matches, or several do. The message lists near or matching keys.
    DamageError
        If the catalog is damaged.
    """
    name = os.fspath(video)
    is_ascii = name.isascii()  # as all keys are, and SQLite takes no undecodable names
    if is_ascii and name in cache:
        return cache[name]
    keys = [video.key for video in _at_path(cache, name)]
    if not keys and name and is_ascii:
        keys = cache.keys_from(name, _MAX_MATCHES + 1)
    if len(keys) == 1:
        return cache[keys[0]]
    where = f"video: got '{printable(name)}', expected"
    if keys:
        more = " and more" if len(keys) > _MAX_MATCHES else ""
        raise NotFoundError(f"{where} the name of one video. Matching keys: {', '.join(keys[:_MAX_MATCHES])}{more}.")
    raise NotFoundError(
        f"{where} a key, the beginning of a key, or the path of a video of {cache!r}. {hint_for(cache, name)}"
    )


def hint_for(cache: Cache, name: str) -> str:
    """Return the sentence of an error that says which keys a wrong key, or a path, may stand for."""
    if keys := [video.key for video in _at_path(cache, name)][:_MAX_NEAR]:
        return f"A path is not a key. Its key: {', '.join(keys)}."
    near = near_keys(cache, name)
    return f"Near keys: {', '.join(near)}." if near else f"List them with 'chordcache ls {printable(cache.path)}'."


def near_keys(cache: Cache, name: str) -> list[str]:
    """Return up to five keys that are similar to a key or a path, the most similar first."""
    slug = key_slug(name)
    keys = cache.keys_around(slug, _MAX_COMPARED)
    whole = difflib.get_close_matches(name, keys, _MAX_NEAR)
    slugs: dict[str, list[str]] = {}
    for key in keys:
        slugs.setdefault(key[:-_HASH_LENGTH], []).append(key)
    similar = difflib.get_close_matches(slug, slugs, _MAX_NEAR)
    return list(dict.fromkeys([*whole, *(key for slug in similar for key in slugs[slug])]))[:_MAX_NEAR]


def _at_path(cache: Cache, name: str) -> list[Video]:
    """Return the videos with this path in the index, or at this path on the disk."""
    if not name or name.endswith("/") or "\0" in name:
        return []
    relative = [video for video in _with_slug_of(cache, name) if video.path == name]
    if relative:
        return relative
    roots = read_header(cache.path).roots
    places = {os.path.abspath(name), os.path.realpath(name)}
    videos = {}
    for place in sorted(places):
        for video in _with_slug_of(cache, place):
            if places & set(_places(roots.get(video.root), video.path)):
                videos[video.key] = video
    return list(videos.values())


def _with_slug_of(cache: Cache, path: str) -> Iterator[Video]:
    """Yield the videos that may be of a file. Their keys begin alike, so that the others need not be read."""
    return (cache[key] for key in cache.keys_from(key_slug(path) + "-", len(cache)))


def _places(folder: str | None, path: str) -> Iterator[str]:
    if folder is not None:
        yield os.path.join(folder, path)
        yield os.path.realpath(os.path.join(folder, path))
