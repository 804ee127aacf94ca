"""Temporary folders. Only the process that makes one removes it."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chordcache.errors import cannot_write


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a temporary folder for this user alone, below ``TMPDIR``, which is removed at the end of the block.

    Raises ``StorageError``.
    """
    pid = os.getpid()
    try:
        folder = tempfile.mkdtemp(prefix="chordcache-")
    except OSError as error:
        raise cannot_write(
            f"cannot make a temporary folder: {error}; set TMPDIR to a folder that can be written to"
        ) from None
    try:
        yield Path(folder)
    finally:
        if os.getpid() == pid:  # a forked process may have a copy of what keeps the folder
            shutil.rmtree(folder, ignore_errors=True)


def keep_with(owner: object, folders: ExitStack) -> None:
    """Let the folders of a stack last as long as an object in this process."""
    weakref.finalize(owner, folders.pop_all().close)
