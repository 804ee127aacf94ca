"""The lists of a cache in an object store, which are checked before they get their names.

A process that ends fetches them for one that reads: the latter may then still fork.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from chordcache.digests import sealed_body
from chordcache.errors import ChordcacheError, DamageError, NotFoundError, printable
from chordcache.json_records import Record
from chordcache.object_stores.client import ObjectStore, StoredObject
from chordcache.object_stores.local_folder import LocalFolder, locked
from chordcache.storage import opener
from chordcache.storage.atomic import no_space_as_error, partial_folder, publish_all, publish_text, remove_partials
from chordcache.storage.catalog import Catalog
from chordcache.storage.origin import Origin
from chordcache.storage.sealed_json import read_sealed, seal

_LISTS = ("chordcache.json", "quarantine.jsonl", "catalog.bin")
"""Files of a cache that readers need beside those of videos, in the order in which they get their names"""

_TAGS_FILE = "lists.json"

_MAX_PARTIAL_SECONDS = 3600
"""[seconds] Age of a partial file of a process that was killed. Processes of other containers cannot be seen"""


class _Tags(Record, frozen=True):
    """The tags of the lists that a folder has."""

    tags: Mapping[str, str | None]


def main(folder: str, url: str, limit: str) -> None:
    """Fetch the lists of a cache, and print the name, message and exit code of an error as JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library may print
    try:
        fetch_lists(Path(folder), Origin(url, int(limit)))
    except ChordcacheError as error:
        answers.write(json.dumps([type(error).__name__, str(error), error.exit_code]))
        answers.flush()


def fetch_lists(folder: Path, origin: Origin) -> None:
    """Fetch the lists of a cache that have changed since the last time.

    Raises ``NotFoundError`` if the object store has no cache, and as ``copy_lists`` and ``publish_all`` do.
    """
    store = ObjectStore(origin.url)
    with no_space_as_error(folder), locked(folder, "lists"):
        remove_partials(folder, of_all_machines=True, min_age_seconds=_MAX_PARTIAL_SECONDS)
        entries = entries_of(store, _LISTS)
        tags = {name: entry.etag for name, entry in entries.items()}
        if None in tags.values() or tags != _known_tags(folder):
            with partial_folder(folder) as partial:
                copy_lists(store, partial, entries)
                publish_all(folder, {partial / name: name for name in entries})
            for name in set(_LISTS) - entries.keys():
                opener.remove(folder, name)
            publish_text(folder, _TAGS_FILE, seal(_Tags(tags)) + "\n")
        LocalFolder(folder, origin).count()


def _known_tags(folder: Path) -> Mapping[str, str | None]:
    try:
        return read_sealed(folder, _TAGS_FILE, _Tags, "a list of tags").tags
    except (NotFoundError, DamageError):
        return {}


def entries_of(store: ObjectStore, names: Iterable[str]) -> dict[str, StoredObject]:
    """Return those of some lists that an object store has. Raises ``NotFoundError`` if the cache does not exist."""
    entries = {}
    for name in names:
        with suppress(NotFoundError):
            entries[name] = store.entry(name)
    if not {"chordcache.json", "catalog.bin"} <= entries.keys():
        store.check_exists()
        url = printable(store.url)
        raise NotFoundError(f"no cache at '{url}'; copy one with 'chordcache push CACHE {url}'")
    return entries


def copy_lists(store: ObjectStore, folder: Path, entries: Mapping[str, StoredObject]) -> None:
    """Copy the lists of a cache into a partial folder of its copy, and compare their digests.

    Raises ``DamageError`` if they are not what was written, or change meanwhile, and as ``ObjectStore.blocks`` does.
    """
    for name, entry in entries.items():
        with no_space_as_error(folder.parent.parent / name), open(folder / name, "xb") as file:
            file.writelines(store.whole(name, entry))
    try:
        Catalog(folder).check_digests()
        for name in entries:
            for line in opener.iter_lines(folder, name) if name.endswith(".jsonl") else ():
                if line.endswith(b"\n") and sealed_body(line) is None:
                    raise DamageError(f"the digest of a line of '{name}' does not match")
    except DamageError as error:
        what = str(error).partition("; run")[0]
        raise DamageError(f"the lists of '{printable(store.url)}' are damaged, or were on their way: {what}") from None
