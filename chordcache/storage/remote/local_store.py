"""A folder of bounded size with the files of a cache that were read lately from a bucket.

Processes share it. A file gets its name when it is complete, its digest is right and the disk has it. One process
fetches a file, and others that need it wait for its lock. At the limit, the files go that were read least lately. A
process that has one of them open can still read it. A file of a pack is a file of its own here::

    bucket.json                the mark, see ``mark``
    chordcache.json, catalog.bin, quarantine.jsonl    as in the bucket
    lists.json                 their tags
    lmdb/ab/<key>....lmdb      and other tiers: files that were fetched
    .fetching/<name>           locked by the process that fetches the file
    .used                      bytes of all files, locked by the process that changes it
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from chordcache.bucket import Bucket, Entry
from chordcache.digests import file_digest, sealed_body
from chordcache.errors import DamageError, NotFoundError, UsageError, printable
from chordcache.json_records import Record
from chordcache.storage import opener
from chordcache.storage.artefacts.tiers import TIERS
from chordcache.storage.atomic import (
    no_space_as_error,
    partial_file,
    partial_folder,
    publish_all,
    publish_text,
    remove_partials,
)
from chordcache.storage.catalog import Catalog
from chordcache.storage.layout import pack_file
from chordcache.storage.remote.mark import Mark
from chordcache.storage.remote.messages import Piece
from chordcache.storage.sealed_json import read_sealed, seal

LISTS = ("chordcache.json", "quarantine.jsonl", "catalog.bin")
"""Files of a cache that readers need beside those of videos, in the order in which they get their names"""

_TAGS_FILE, _LOCKS, _USED_FILE = "lists.json", ".fetching", ".used"

_MAX_PARTIAL_SECONDS = 3600
"""[seconds] Age of a partial file of a process that was killed. Processes of other containers cannot be seen"""

_SLACK = 0.9
"""Share of the limit to which the folder shrinks when it is full: each time, all of its files are looked at"""


class _Tags(Record, frozen=True):
    """The tags of the lists that a folder has."""

    tags: Mapping[str, str | None]


class LocalStore:
    """The folder, as the process that fetches sees it. Several threads may call ``fetch``."""

    def __init__(self, folder: Path, mark: Mark) -> None:
        self._folder, self._limit = folder, mark.limit
        self._bucket = Bucket(mark.url)

    def fetch_lists(self) -> None:
        """Fetch the lists of the cache that have changed since the last time. Each is checked before it gets its name.

        Raises ``NotFoundError`` if the bucket holds no cache, and as ``Catalog.check_digests`` and ``Bucket`` do.
        """
        with _locked(self._folder, "lists"):
            remove_partials(self._folder, of_all_machines=True, min_age_seconds=_MAX_PARTIAL_SECONDS)
            entries = entries_of(self._bucket, LISTS)
            tags = {name: entry.etag for name, entry in entries.items()}
            if None in tags.values() or tags != self._known_tags():
                with partial_folder(self._folder) as folder:
                    copy_lists(self._bucket, folder, entries)
                    publish_all(self._folder, {folder / name: name for name in entries})
                for name in set(LISTS) - entries.keys():
                    opener.remove(self._folder, name)
                publish_text(self._folder, _TAGS_FILE, seal(_Tags(tags)) + "\n")
            with self._used() as used:
                used.clear()
                used.append(sum(num_bytes for _, num_bytes, _ in self._files()))

    def _known_tags(self) -> Mapping[str, str | None]:
        try:
            return read_sealed(self._folder, _TAGS_FILE, _Tags, "a list of tags").tags
        except (NotFoundError, DamageError):
            return {}

    def fetch(self, piece: Piece) -> None:
        """Fetch a file, unless another process has fetched it.

        Raises ``DamageError`` if other bytes arrive than were written, ``UsageError`` if the limit is below the size of
        the file, and as ``Bucket.blocks`` and ``publish_all`` do.
        """
        if piece.num_bytes > self._limit:
            raise UsageError(
                f"limit: got {self._limit} bytes, expected at least the {piece.num_bytes} of '{piece.file}'"
            )
        with _locked(self._folder, piece.file.rpartition("/")[2]):
            if opener.exists(self._folder, piece.file):
                return
            self._make_room(piece.num_bytes)
            with partial_file(self._folder) as partial:
                download(self._bucket, piece, partial)
                publish_all(self._folder, {partial: piece.file})

    def _make_room(self, num_bytes: int) -> None:
        """Count a file that arrives, and remove the files that were read least lately if the folder is full."""
        with self._used() as used:
            used.append(num_bytes)
            if sum(used) <= self._limit:
                return
            files = sorted(self._files())
            total = sum(num_bytes for _, num_bytes, _ in files) + num_bytes
            for _, size, name in files:
                if total <= max(num_bytes, _SLACK * self._limit):
                    break
                opener.remove(self._folder, name)
                total -= size
            used[:] = [total]

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield time of the last read [nanoseconds], size [bytes] and name of each file."""
        for tier in TIERS:
            for name in opener.iter_files(self._folder, tier):
                try:
                    status = os.lstat(self._folder / name)
                except FileNotFoundError:
                    continue
                yield status.st_mtime_ns, status.st_size, name

    @contextmanager
    def _used(self) -> Iterator[list[int]]:
        """Lock the number of bytes of all files, and yield it in a list. The sum of the list is the new number.

        A process that was killed leaves a number that is too large. The next look at all files corrects it.
        """
        fd = opener.open_file(self._folder, _USED_FILE, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            text = os.pread(fd, 32, 0)
            used = [int(text) if text.isdigit() else 0]
            yield used
            with no_space_as_error(self._folder):
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d" % sum(used), 0)
        finally:
            os.close(fd)


@contextmanager
def _locked(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock among the processes that share a folder, and wait for it. Its file is removed at the end.

    A process that waits for a removed file goes on beside one that makes the file again. Both then see the result.
    """
    file = f"{_LOCKS}/{name}"
    opener.make_folder(folder, _LOCKS)
    fd = opener.open_file(folder, file, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        opener.remove(folder, file)
        os.close(fd)


def entries_of(bucket: Bucket, names: Iterable[str]) -> dict[str, Entry]:
    """Return those of some lists that a bucket has. Raises ``NotFoundError`` if the cache does not exist."""
    entries = {}
    for name in names:
        with suppress(NotFoundError):
            entries[name] = bucket.entry(name)
    if not {"chordcache.json", "catalog.bin"} <= entries.keys():
        bucket.check_exists()
        url = printable(bucket.url)
        raise NotFoundError(f"no cache at '{url}'; copy one with 'chordcache push CACHE {url}'")
    return entries


def copy_lists(bucket: Bucket, folder: Path, entries: Mapping[str, Entry]) -> None:
    """Copy the lists of a cache into an empty folder, and compare their digests.

    Raises ``DamageError`` if they are not what was written, or change meanwhile, and as ``Bucket.blocks`` does.
    """
    for name, entry in entries.items():
        with no_space_as_error(folder), open(folder / name, "xb") as file:
            for block in bucket.whole(name, entry):
                file.write(block)
    try:
        Catalog(folder).check_digests()
        for name in entries:
            for line in opener.iter_lines(folder, name) if name.endswith(".jsonl") else ():
                if line.endswith(b"\n") and sealed_body(line) is None:
                    raise DamageError(f"the digest of a line of '{name}' does not match")
    except DamageError as error:
        what = str(error).partition("; run")[0]
        raise DamageError(f"the lists of '{printable(bucket.url)}' are damaged, or were on their way: {what}") from None


def download(bucket: Bucket, piece: Piece, partial: Path) -> None:
    """Copy a file of a cache, and compare its size and digest on the way. Raises ``DamageError`` if they differ."""
    name, start = piece.file, 0
    if piece.packed is not None:
        name, start = pack_file(piece.packed.pack), piece.packed.offset
    digest, num_bytes, what = file_digest(), 0, "got other bytes"
    try:
        with no_space_as_error(partial), open(partial, "xb") as file:
            for block in bucket.blocks(name, start, piece.num_bytes):
                digest.update(block)
                num_bytes += len(block)
                file.write(block)
    except NotFoundError:
        bucket.check_exists()
        what = "got no object"
    if num_bytes != piece.num_bytes or digest.hexdigest() != piece.digest:
        raise DamageError(
            f"'{printable(bucket.url)}/{name}': {what}, expected those of '{piece.file}'. Run the same command again. "
            "If they are damaged in the bucket, remove the object and push the cache again."
        )
