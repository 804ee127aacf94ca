"""The walk over corpora: which files exist, in which order, and which of them may be videos."""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from chordcache.errors import NotFoundError, UsageError, printable
from chordcache.index.file_names import VIDEO_SUFFIXES
from chordcache.media.source_file import leads_out, real_folder
from chordcache.object_stores.client import is_in_store, source_folder
from chordcache.object_stores.sources import iter_names

OTHER_SUFFIXES = frozenset(
    "mp3 wav m4a m4b aac flac ogg oga opus wma aif aiff ac3 eac3 dts mka mid midi amr ape caf "
    "jpg jpeg png bmp tif tiff heic heif avif ico svg psd exr hdr dng cr2 cr3 nef arw jp2 jxl "
    "txt md rst csv tsv json jsonl ndjson yaml yml toml ini cfg conf xml html htm css pdf doc docx xls xlsx ppt pptx "
    "srt vtt ass ssa sub idx lrc m3u m3u8 pls xspf mpd ism nfo log url py ipynb sh c h cpp js r m "
    "mat pkl pickle pt pth ckpt onnx safetensors npy npz h5 hdf5 lmdb mdb sqlite db parquet arrow feather tfrecord "
    "zip tar gz tgz bz2 xz 7z rar zst iso exe dll so md5 sha1 sha256 torrent".split()
)
"""Suffixes of files that are never opened."""

_HEAD_BYTES = 21


@dataclass(frozen=True)
class CorpusFile:
    """One entry of a corpus."""

    path: str
    """Path relative to the root's folder, decoded as ``os.fsdecode`` does"""
    is_video: bool
    """True if the file is to be probed"""
    problem: str | None = None
    """Reason why the folder at ``path`` could not be walked, a failure that a scan must show"""
    is_unfollowed_link: bool = False
    """True if it was skipped: a symbolic link to a folder or out of the root, or a folder walked under another name"""


@dataclass(frozen=True)
class _Entry:
    key: bytes
    path: str
    is_folder: bool
    is_link: bool


def iter_files(root: str, *, follow_symlinks: bool = False) -> Iterator[CorpusFile]:
    """Walk a folder in the order of the relative paths' bytes. Raises ``NotFoundError`` if it does not exist.

    Every entry that is not a folder is yielded, and every folder that cannot be listed, with its ``problem``. The walk
    holds one folder's listing per level in memory. By default it follows a link to a file only if the target is inside
    the root, and never follows a link to a folder.

    With ``follow_symlinks``, it follows links out of the root too. A folder is walked once, under the name that comes
    first. A link back into the root's own tree is skipped, because its target is walked under its own name.

    In an object store, only suffixes decide what is a video, and the names of all objects are in memory.
    """
    if is_in_store(root):
        yield from (CorpusFile(name, is_video=_suffix_of(name) in VIDEO_SUFFIXES) for name in iter_names(root))
        return
    if not os.path.lexists(root):
        raise NotFoundError(f"no such folder or file '{printable(root)}'. Correct the path, or mount its disk.")
    inside = real_folder(root)
    seen: set[tuple[int, int]] = set()
    _was_seen(root, seen)
    stack = [_listed(root, "")]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
        elif isinstance(entry, CorpusFile):
            yield entry
        elif not _is_followed(root, entry, inside, follow_symlinks):
            yield CorpusFile(entry.path, is_video=False, is_unfollowed_link=True)
        elif not entry.is_folder:
            yield CorpusFile(entry.path, is_video=_may_be_video(os.path.join(root, entry.path)))
        elif follow_symlinks and _was_seen(os.path.join(root, entry.path), seen):
            yield CorpusFile(entry.path, is_video=False, is_unfollowed_link=True)
        else:
            stack.append(_listed(root, entry.path))


def _listed(root: str, folder: str) -> Iterator[_Entry | CorpusFile]:
    """Return the entries of a folder in order, or the problem of the folder."""
    try:
        with os.scandir(os.path.join(root, folder)) as listing:
            entries = [_entry(folder, item) for item in listing]
    except OSError as error:
        return iter([CorpusFile(folder or ".", is_video=False, problem=f"cannot list the folder: {error.strerror}")])
    return iter(sorted(entries, key=lambda entry: entry.key))


def _entry(folder: str, item: os.DirEntry[str]) -> _Entry:
    try:
        is_folder = item.is_dir()
    except OSError:  # a link to itself
        is_folder = False
    # A folder's files sort among its siblings as "name/...", so that the whole walk is in order.
    key = os.fsencode(item.name) + (b"/" if is_folder else b"")
    return _Entry(key, os.path.join(folder, item.name), is_folder, item.is_symlink())


def _was_seen(folder: str, seen: set[tuple[int, int]]) -> bool:
    """Return whether the walk has visited a folder, under this or another name. Mark the folder as visited."""
    try:
        status = os.stat(folder)
    except OSError:  # the listing reports the error
        return False
    identity = (status.st_dev, status.st_ino)
    was_seen = identity in seen
    seen.add(identity)
    return was_seen


def _is_followed(root: str, entry: _Entry, inside: str, follow_symlinks: bool) -> bool:
    if not entry.is_link:
        return True
    is_outside = leads_out(os.path.join(root, entry.path), inside)
    if entry.is_folder:
        return follow_symlinks and is_outside
    return follow_symlinks or not is_outside


def _suffix_of(path: str) -> str:
    """Return the suffix of a name, in small letters. macOS leaves a "._clip.mp4" beside a video: it has none."""
    name = os.path.basename(path)
    return name.rpartition(".")[2].lower() if "." in name and not name.startswith("._") else ""


def _may_be_video(path: str) -> bool:
    suffix = _suffix_of(path)
    if suffix in VIDEO_SUFFIXES:
        return True
    return suffix not in OTHER_SUFFIXES and _looks_like_video(path)


def _looks_like_video(path: str) -> bool:
    """Return whether a regular file starts as a video does. Return True if only a permission prevents the check."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # O_NONBLOCK: a FIFO would hang
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM, errno.EIO)
    try:
        head = os.pread(fd, _HEAD_BYTES, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return True
    finally:
        os.close(fd)
    return (
        head[4:8] == b"ftyp"
        or head.startswith((b"\x1a\x45\xdf\xa3", b"OggS", b"FLV\x01", b"\x00\x00\x01\xba"))
        or (head.startswith(b"RIFF") and head[8:12] == b"AVI ")
        or (head[8:16] == b"WEBPVP8X" and any(byte & 2 for byte in head[20:]))  # an animated one is refused by name
    )


# Roots


@dataclass(frozen=True)
class Corpus:
    """A labeled root: a whole folder, or some files in it."""

    label: str
    folder: str
    """Absolute path"""
    names: tuple[str, ...] = ()
    """Names of the files that were requested one by one, or empty for all files in the folder"""

    def files(self, *, follow_symlinks: bool = False) -> Iterator[CorpusFile]:
        """Return the files as ``iter_files`` does. A file that was requested by name counts as a video."""
        if not self.names:
            return iter_files(self.folder, follow_symlinks=follow_symlinks)
        inside = None if follow_symlinks else real_folder(self.folder)
        return (self._named(name, inside) for name in sorted(self.names, key=os.fsencode))

    def _named(self, name: str, inside: str | None) -> CorpusFile:
        is_outside = leads_out(os.path.join(self.folder, name), inside)
        return CorpusFile(name, is_video=not is_outside, is_unfollowed_link=is_outside)


def parse_roots(args: Sequence[str]) -> list[Corpus]:
    """Return the corpora that the command line names, in order: folders, files, URLs of object stores, or NAME=PATH.

    Files of one folder make one corpus. The default label is the folder's name, for a file that of the file's folder.
    Raises ``NotFoundError``, or ``UsageError`` if two folders have the same label or a folder has none.
    """
    corpora: dict[str, Corpus] = {}
    for arg in args:
        corpus = _parse_root(arg)
        earlier = corpora.setdefault(corpus.label, corpus)
        if earlier.folder != corpus.folder:
            raise UsageError(
                f"roots: got '{printable(earlier.folder)}' and '{printable(corpus.folder)}', both called "
                f"'{printable(corpus.label)}', expected different names. Give one another name with NAME=PATH."
            )
        names = {*earlier.names, *corpus.names} if earlier.names and corpus.names else ()
        corpora[corpus.label] = replace(corpus, names=tuple(names))
    return list(corpora.values())


def check_apart(corpora: Sequence[Corpus]) -> None:
    """Raise ``UsageError`` if a file is in two corpora, one inside the other."""
    for around, corpus in itertools.permutations(corpora, 2):
        outer, inner = real_folder(around.folder), real_folder(corpus.folder)
        is_inside = inner == outer or inner.startswith(os.path.join(outer, ""))
        shares = is_inside if not around.names else inner == outer and not {*around.names}.isdisjoint(corpus.names)
        if shares:
            raise UsageError(
                f"roots: got '{printable(corpus.folder)}' inside or equal to '{printable(around.folder)}', expected "
                "each file in one root. Leave one out."
            )


def _parse_root(arg: str) -> Corpus:
    name, equals, path = arg.partition("=")
    if not equals or not re.fullmatch(r"\w[\w.-]*", name) or os.path.lexists(arg):
        name, path = "", arg
    folder, file_name = source_folder(path), ""
    in_store = is_in_store(folder)
    if not in_store and not (path and os.path.lexists(folder)):
        raise NotFoundError(f"no such folder or file '{printable(path)}'. Correct the path, or mount its disk.")
    if _suffix_of(folder) in VIDEO_SUFFIXES if in_store else not os.path.isdir(folder):
        folder, file_name = os.path.split(folder)
    label = name or os.path.basename(folder)
    if not label:
        raise UsageError(f"roots: got '{printable(folder)}', which has no name, expected NAME={printable(path)}")
    return Corpus(label, folder, (file_name,) if file_name else ())
