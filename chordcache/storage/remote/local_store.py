"""A folder of bounded size with the files of a cache that were read lately from a bucket.

Processes share it. A file gets its name when it is complete, its digest is right and the disk has it. One process
fetches a file, and others that need it wait for its lock. At the limit, the files go that were read least lately. A
process that has one of them open can still read it. A file of a pack is a file of its own here::

    bucket.json                the mark, see ``mark``
    chordcache.json, catalog.bin, quarantine.jsonl    as in the bucket
    lists.json                 their tags
    lmdb/ab/<key>....lmdb      and other tiers: files that were fetched
    ranges/ab/<key>....lmdb    files of which some ranges were fetched, see ``ranges``
    .fetching/<name>           locked by the process that fetches the file
    .used                      bytes of all files, locked by the process that changes it
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from chordcache.storage.feature_info import StoredFile
from chordcache.storage.layout import place_of
from chordcache.storage.remote import ranges
from chordcache.storage.remote.mark import Mark
from chordcache.storage.remote.messages import FETCH_AGAIN, Span
from chordcache.storage.sealed_json import read_sealed, seal

LISTS = ("chordcache.json", "quarantine.jsonl", "catalog.bin")
"""Files of a cache that readers need beside those of videos, in the order in which they get their names"""

_TAGS_FILE, _LOCKS, _USED_FILE = "lists.json", ".fetching", ".used"

_MAX_PARTIAL_SECONDS = 3600
"""[seconds] Age of a partial file of a process that was killed. Processes of other containers cannot be seen"""

_PART_BYTES = 8 << 20
"""Size of the ranges of a file that are in memory at once, or a part of one that is larger [bytes]"""

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

    def fetch(self, stored: StoredFile) -> None:
        """Fetch a file, unless another process has fetched it.

        Raises ``DamageError`` if other bytes arrive than were written, ``UsageError`` if the limit is below their
        number, and as ``Bucket.blocks`` and ``publish_all`` do.
        """
        self._check_limit(stored.num_bytes, stored)
        with _locked(self._folder, stored.name.rpartition("/")[2]):
            if opener.exists(self._folder, stored.name):
                return
            self._make_room(stored.num_bytes)
            with no_space_as_error(self._folder / stored.name), partial_file(self._folder) as partial:
                download(self._bucket, stored, partial)
                publish_all(self._folder, {partial: stored.name})

    def fetch_ranges(self, stored: StoredFile, spans: Sequence[Span]) -> None:
        """Fetch ranges of a file, except for those that another process has fetched. Raises as ``fetch`` does.

        A digest is of the whole file, so ``DamageError`` is only raised if fewer bytes arrive.
        """
        name, num_bytes = ranges.file_of(stored.name), stored.num_bytes
        with no_space_as_error(self._folder / name):
            fd = _open_or_make(self._folder, name)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                os.ftruncate(fd, ranges.size_of(num_bytes))
                os.utime(fd)
                wanted = ranges.missing(fd, num_bytes, spans)
                num_wanted = sum(stop - start for start, stop in wanted)
                self._check_limit(num_wanted, stored)
                self._make_room(num_wanted)
                for start, content in _contents(self._bucket, stored, wanted):
                    _write_all(fd, content, start)
                os.fdatasync(fd)
                for span in wanted:
                    ranges.note_arrival(fd, num_bytes, span)
            finally:
                os.close(fd)

    def _check_limit(self, num_bytes: int, stored: StoredFile) -> None:
        if num_bytes > self._limit:
            raise UsageError(
                f"limit: got {self._limit} bytes, expected at least the {num_bytes} that are read of "
                f"'{stored.name}' at once. Raise the limit."
            )

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
        for folder in (*TIERS, ranges.FOLDER):
            for name in opener.iter_files(self._folder, folder):
                try:
                    status = os.lstat(self._folder / name)
                except FileNotFoundError:
                    continue
                is_whole = folder != ranges.FOLDER
                yield status.st_mtime_ns, status.st_size if is_whole else 512 * status.st_blocks, name

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


def _open_or_make(folder: Path, name: str) -> int:
    """Return the descriptor of a file, which is made if it does not exist."""
    try:
        return opener.open_file(folder, name, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        opener.make_folder(folder, name.rpartition("/")[0])
        return opener.open_file(folder, name, os.O_RDWR | os.O_CREAT)


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
    """Copy the lists of a cache into a partial folder of its copy, and compare their digests.

    Raises ``DamageError`` if they are not what was written, or change meanwhile, and as ``Bucket.blocks`` does.
    """
    for name, entry in entries.items():
        with no_space_as_error(folder.parent.parent / name), open(folder / name, "xb") as file:
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


def download(bucket: Bucket, stored: StoredFile, partial: Path) -> None:
    """Copy a file of a cache, and compare its size and digest on the way. Raises ``DamageError`` if they differ."""
    name, start = place_of(stored)
    digest, num_bytes, what = file_digest(), 0, "got other bytes"
    try:
        with open(partial, "xb") as file:
            for block in bucket.blocks(name, start, stored.num_bytes):
                digest.update(block)
                num_bytes += len(block)
                file.write(block)
    except NotFoundError:
        bucket.check_exists()
        what = "got no object"
    if num_bytes != stored.num_bytes or digest.hexdigest() != stored.digest:
        raise DamageError(f"{_damaged(bucket, stored, what)}. {FETCH_AGAIN}")


def _contents(bucket: Bucket, stored: StoredFile, spans: Sequence[Span]) -> Iterator[tuple[int, bytes]]:
    """Fetch ranges of a file, and yield the place of each part in the file, and its bytes."""
    name, first = place_of(stored)
    parts = [
        (start, min(start + _PART_BYTES, stop)) for begin, stop in spans for start in range(begin, stop, _PART_BYTES)
    ]
    while parts:
        few, num_bytes = [], 0
        while parts and num_bytes < _PART_BYTES:
            few.append(parts.pop(0))
            num_bytes += few[-1][1] - few[-1][0]
        try:
            contents = bucket.ranges(name, [(first + start, first + stop) for start, stop in few])
        except NotFoundError:
            bucket.check_exists()
            raise _damaged(bucket, stored, "got no object") from None
        for (start, stop), content in zip(few, contents, strict=True):
            if len(content) != stop - start:
                raise _damaged(bucket, stored, "got other bytes")
            yield start, content


def _write_all(fd: int, content: bytes, start: int) -> None:
    """Write bytes at a place of a file. A system call may write fewer."""
    view = memoryview(content)
    while view:
        num_written = os.pwrite(fd, view, start)
        view, start = view[num_written:], start + num_written


def _damaged(bucket: Bucket, stored: StoredFile, what: str) -> DamageError:
    return DamageError(f"'{printable(bucket.url)}/{place_of(stored)[0]}': {what}, expected those of '{stored.name}'")
