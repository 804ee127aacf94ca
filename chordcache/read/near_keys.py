"""The keys that a wrong key, or a path, may stand for."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator

from chordcache.errors import printable
from chordcache.storage.cache_header import read_header
from chordcache.storage.catalog import Catalog
from chordcache.storage.layout import key_slug
from chordcache.storage.sidecar import Sidecar

_MAX_NEAR = 5
"""Number of near keys in a message"""

_MAX_COMPARED = 5000
"""Keys before and after the name that are compared with it. Comparing a million takes a minute"""

_HASH_LENGTH = 17
"""Letters of a key after its readable part: a hyphen and 16 digits"""


def hint_for(catalog: Catalog, name: str) -> str:
    """Return the sentence of an error that says which keys a wrong key, or a path, may stand for."""
    if keys := keys_at_path(catalog, name)[:_MAX_NEAR]:
        return f"A path is not a key. Its key: {', '.join(keys)}."
    near = near_keys(catalog, name)
    return f"Near keys: {', '.join(near)}." if near else f"List them with 'chordcache ls {printable(catalog.cache)}'."


def near_keys(catalog: Catalog, name: str) -> list[str]:
    """Return up to five keys that are similar to a key or a path, the most similar first."""
    slug = key_slug(name)
    keys = catalog.keys_around(slug, _MAX_COMPARED)
    whole = difflib.get_close_matches(name, keys, _MAX_NEAR)
    slugs: dict[str, list[str]] = {}
    for key in keys:
        slugs.setdefault(key[:-_HASH_LENGTH], []).append(key)
    similar = difflib.get_close_matches(slug, slugs, _MAX_NEAR)
    return list(dict.fromkeys([*whole, *(key for slug in similar for key in slugs[slug])]))[:_MAX_NEAR]


def keys_at_path(catalog: Catalog, name: str) -> list[str]:
    """Return the keys of the videos with this path in the index, or else at this path on the disk."""
    if not name or name.endswith("/") or "\0" in name:
        return []
    keys = [sidecar.key for sidecar in _with_slug_of(catalog, name) if sidecar.path == name]
    if keys:
        return keys
    roots = read_header(catalog.cache).roots
    places = {os.path.abspath(name), os.path.realpath(name)}
    candidates = (sidecar for place in sorted(places) for sidecar in _with_slug_of(catalog, place))
    at_place = (sidecar.key for sidecar in candidates if places & _places(roots.get(sidecar.root), sidecar.path))
    return list(dict.fromkeys(at_place))


def _with_slug_of(catalog: Catalog, path: str) -> Iterator[Sidecar]:
    """Yield the videos that may be of a file. Their keys begin alike, so that the others need not be read."""
    for key in catalog.keys_from(key_slug(path) + "-", len(catalog)):
        sidecar = catalog.find(key)
        assert sidecar is not None
        yield sidecar


def _places(folder: str | None, path: str) -> set[str]:
    whole = os.path.join(folder or "", path)
    return set() if folder is None else {whole, os.path.realpath(whole)}
