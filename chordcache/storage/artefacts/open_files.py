"""The artefacts that this process has open.

Opening an artefact takes longer than reading a clip of it, so a process keeps those that it opened last. Threads and
forked processes share flat files, which are read by position. For HDF5, see ``guarded_files``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from chordcache.errors import DamageError, printable
from chordcache.records import Packed
from chordcache.storage.artefacts import guarded_files
from chordcache.storage.artefacts.artefact import Artefact, Claims, cache_of, row_bytes
from chordcache.storage.artefacts.guarded_files import inode_of
from chordcache.storage.artefacts.tiers import load, tier_of
from chordcache.storage.artefacts.writer import ArtefactWriter
from chordcache.storage.layout import pack_file

FRAME_ARRAYS = ("pts_seconds", "source_frames", "keyframes")
"""Whole arrays about the frames of a video, which each of its artefacts has."""

_MAX_OPEN = 64
"""Number of flat artefacts that a process keeps open."""

_CHECK_RECORDS = 1000
"""Number of records that are checked at once."""

_CHECK_BYTES = 16 << 20
"""Size of the rows that are checked at once [bytes]."""


def create_artefact(path: Path, **options: Any) -> ArtefactWriter:
    """Begin an artefact in the tier that the suffix names.

    Parameters
    ----------
    path : Path
        ``.lmdb``, ``.npz`` or ``.h5``, in a folder of its own.
    **options
        Keyword arguments of the tier's writer.

    Raises
    ------
    UsageError
        If no such tier or option exists.
    NoSpaceError, CacheWriteError
        If the disk cannot take the file.
    """
    writer: ArtefactWriter = load(tier_of(path).writer)(path, **options)
    return writer


def _open(path: Path, *details: Any) -> Artefact:
    artefact: Artefact = load(tier_of(path).artefact)(path, *details)
    return artefact


_flat: OrderedDict[tuple[Path, Packed | None], tuple[tuple[int, int] | None, Artefact]] = OrderedDict()
"""Flat artefacts by path and place, each with its inode, the one opened first at the front. A lock is not used,
since a fork could copy one that another thread holds: each call is atomic. The last user of an artefact closes it."""


def _flat_artefact(path: Path, num_bytes: int, claims: Claims | None, packed: Packed | None) -> Artefact:
    # The inode is read before the file is opened: if the file is replaced meanwhile, the next user sees it
    inode = inode_of(path if packed is None else f"{cache_of(path)}/{pack_file(packed.pack)}")
    known, artefact = _flat.get((path, packed), (None, None))
    if artefact is None or known != inode:
        artefact = _open(path, num_bytes, claims, packed)
        _flat[path, packed] = inode, artefact
    with suppress(KeyError):  # another thread may have removed it
        _flat.move_to_end((path, packed))
        while len(_flat) > _MAX_OPEN:
            _flat.popitem(last=False)
    return artefact


@contextmanager
def open_artefact(
    path: Path, num_bytes: int, claims: Claims | None = None, packed: Packed | None = None
) -> Iterator[Artefact]:
    """Open an artefact, or return it if this process has it open. Do not fork while one of HDF5 is in use.

    Parameters
    ----------
    path : Path
        A published artefact. Its suffix names the store.
    num_bytes : int
        Its size according to the sidecar [bytes].
    claims : Claims, optional
        The other statements of the sidecar, see ``Artefact``.
    packed : Packed, optional
        Its place in a pack, see ``Artefact``.

    Raises
    ------
    UsageError
        If the suffix belongs to no tier.
    DamageError
        If the file is missing, has another size or is not such an artefact.
    """
    if tier_of(path).is_flat:
        yield _flat_artefact(path, num_bytes, claims, packed)
    else:
        with guarded_files.use(path, lambda: _open(path, num_bytes, claims)) as artefact:
            yield artefact


def forget(path: Path) -> None:
    """Close an artefact, unless it is in use."""
    for name, packed in list(_flat):
        if name == path:
            _flat.pop((name, packed), None)
    guarded_files.forget(path)


def check_artefact(
    path: Path,
    num_bytes: int,
    num_rows: Mapping[str, int],
    *,
    claims: Claims | None = None,
    packed: Packed | None = None,
    whole: Collection[str] = FRAME_ARRAYS,
    look: Callable[[str, int, Any], None] | None = None,
) -> None:
    """Check every row and array of an artefact, and that the file holds nothing else.

    Memory is bounded.

    Parameters
    ----------
    path, num_bytes, claims, packed
        As in ``open_artefact``.
    num_rows : mapping of str to int
        Name of every streamed array to its number of rows.
    whole : collection of str
        Names of all whole arrays, without the arrays of digests.
    look : callable, optional
        Called for each row or record that passes the check, with the name of the streamed array, the number, and the
        row or record. The memory of the row is valid until the call returns.

    Raises
    ------
    DamageError
        At the first row, record or array that changed. Also if an array is missing, unexpected, or of another length.
    """
    with open_artefact(path, num_bytes, claims, packed) as artefact:
        _check_names(artefact, num_rows, whole)
        for name in num_rows:
            done = 0
            while done < num_rows[name]:
                done = _check_span(artefact, name, done, look)
    forget(path)


def _check_names(artefact: Artefact, num_rows: Mapping[str, int], whole: Collection[str]) -> None:
    shapes = {name: f"{artefact.num_rows(name)} rows" for name in artefact.streamed}
    shapes |= dict.fromkeys(artefact.whole, "a whole array")
    wanted = {name: f"{count} rows" for name, count in num_rows.items()} | dict.fromkeys(whole, "a whole array")
    for name in sorted({*shapes, *wanted}):
        if shapes.get(name) != wanted.get(name):
            have, want = shapes.get(name, "nothing"), wanted.get(name, "nothing")
            what = f"got {have} of '{printable(name)}', expected {want}"
            raise DamageError(f"'{printable(artefact.path)}' is damaged: {what}")
    for name in whole:
        artefact.array(name)


def _check_span(artefact: Artefact, name: str, start: int, look: Callable[[str, int, Any], None] | None) -> int:
    """Check some rows from ``start`` on. Return the number of the next row."""
    layout = artefact.layout(name)
    if layout.dtype is None:
        span = range(start, min(start + _CHECK_RECORDS, layout.num_rows))
        values: Any = artefact.records(name, span)
    else:
        num_rows = max(1, _CHECK_BYTES // max(1, row_bytes(layout.row_shape, layout.dtype)))
        span = range(start, min(start + num_rows, layout.num_rows))
        values = artefact.rows(name, span)
    for number, value in zip(span, values, strict=True):
        if look is not None:
            look(name, number, value)
    return span.stop
