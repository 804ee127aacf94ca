"""The artefacts that this process has open.

Opening an artefact takes longer than reading a clip of it, so a process keeps those that it opened last. Threads and
forked processes share them, since files are read by position.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from chordcache.errors import DamageError, printable
from chordcache.storage.artefacts.artefact import Artefact
from chordcache.storage.artefacts.tiers import tier_of
from chordcache.storage.feature_info import Packed
from chordcache.storage.feature_rules import Claims
from chordcache.storage.layout import pack_file

FRAME_ARRAYS = ("pts_seconds", "source_frames", "keyframes")
"""Whole arrays about the frames of a video, which each of its artefacts has."""

_MAX_OPEN = 128
"""Number of artefacts that a process keeps open."""

_CHECK_RECORDS = 1000
"""Number of records that are checked at once."""

_CHECK_BYTES = 16 << 20
"""Size of the rows that are checked at once [bytes]."""


_kept: OrderedDict[tuple[Path, Packed | None], tuple[tuple[int, int] | None, Artefact]] = OrderedDict()
"""Artefacts by path and place, each with its inode, the one opened first at the front. A lock is not used, since a fork
could copy one that another thread holds: each call is atomic."""


def open_artefact(path: Path, num_bytes: int, claims: Claims | None = None, packed: Packed | None = None) -> Artefact:
    """Open an artefact, or return it if this process has it open. The last user of an artefact closes it.

    The parameters are those of ``Artefact``. The suffix of the path names the store. Raises ``UsageError`` if it
    belongs to no tier, and as ``Artefact`` does.
    """
    # The inode is read before the file is opened: if the file is replaced meanwhile, the next user sees it
    try:
        status = os.stat(path if packed is None else path.parents[2] / pack_file(packed.pack))
        inode = status.st_dev, status.st_ino
    except OSError:  # the one who opens it raises
        inode = None
    known, artefact = _kept.get((path, packed), (None, None))
    if artefact is None or known != inode:
        artefact = resolve_name(tier_of(path).artefact)(path, num_bytes, claims, packed)
        _kept[path, packed] = inode, artefact
    with suppress(KeyError):  # another thread may have removed it
        _kept.move_to_end((path, packed))
        while len(_kept) > _MAX_OPEN:
            _kept.popitem(last=False)
    return artefact


def forget(path: Path) -> None:
    """Close an artefact as soon as it is not in use."""
    for name, packed in list(_kept):
        if name == path:
            _kept.pop((name, packed), None)


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
    """Check every row and array of an artefact, and that the file holds nothing else. Memory is bounded.

    ``num_rows`` has the number of rows of every streamed array, and ``whole`` the names of all whole arrays, without
    the arrays of digests. ``look`` is called for each row or record that passes the check, with the name of the
    streamed array, the number, and the row or record, whose memory is valid until the call returns. Raises
    ``DamageError`` at the first row, record or array that changed, or if an array is missing, unexpected, or of another
    length.
    """
    artefact = open_artefact(path, num_bytes, claims, packed)
    _check_names(artefact, num_rows, whole)
    for name in num_rows:
        layout = artefact.layout(name)
        at_once = _CHECK_RECORDS if layout.dtype is None else max(1, _CHECK_BYTES // max(1, layout.row_bytes))
        read = artefact.records if layout.dtype is None else artefact.rows
        for start in range(0, num_rows[name], at_once):
            span = range(start, min(start + at_once, num_rows[name]))
            for number, value in zip(span, read(name, span), strict=True):
                if look is not None:
                    look(name, number, value)
    forget(path)


def _check_names(artefact: Artefact, num_rows: Mapping[str, int], whole: Collection[str]) -> None:
    shapes = {name: f"{artefact.layout(name).num_rows} rows" for name in artefact.streamed}
    shapes |= dict.fromkeys(artefact.whole, "a whole array")
    wanted = {name: f"{count} rows" for name, count in num_rows.items()} | dict.fromkeys(whole, "a whole array")
    for name in sorted({*shapes, *wanted}):
        if shapes.get(name) != wanted.get(name):
            have, want = shapes.get(name, "nothing"), wanted.get(name, "nothing")
            what = f"got {have} of '{printable(name)}', expected {want}"
            raise DamageError(f"'{printable(artefact.path)}' is damaged: {what}")
    for name in whole:
        artefact.array(name)
