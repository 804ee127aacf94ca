"""File systems with little room, each mounted for one test. Only root can mount them."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from helpers.processes import wait_until

Disk: TypeAlias = Callable[[Path, str], AbstractContextManager[Path]]
"""``tmpfs`` or ``ext4``"""


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _unmount(folder: Path, *, may_be_open: bool) -> None:
    """Detach the disk in any case. Unless files may be open, one that is still open after 5 seconds is a failure."""

    def is_unmounted() -> bool:
        return subprocess.run(["umount", folder], capture_output=True).returncode == 0

    if may_be_open:
        _run("umount", "-l", folder)
    elif not wait_until(is_unmounted, 5):
        _run("umount", "-l", folder)
        raise AssertionError(f"{folder}: a process still has a file open on this disk")


@contextlib.contextmanager
def tmpfs(folder: Path, size: str, *, may_be_open: bool = False) -> Iterator[Path]:
    """Mount a tmpfs of that size, such as "3m", at ``folder``, which must not exist."""
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder)
    try:
        yield folder
    finally:
        _unmount(folder, may_be_open=may_be_open)


@contextlib.contextmanager
def ext4(folder: Path, size: str, *, may_be_open: bool = False) -> Iterator[Path]:
    """Mount an ext4 file system of that size at ``folder``; see ``image_of``.

    It assigns blocks only when it writes them, so that it is full later than a tmpfs.
    """
    folder.mkdir()
    _run("truncate", "-s", size, image_of(folder))
    _run("mkfs.ext4", "-q", "-m", "0", image_of(folder))
    _run("mount", "-o", "loop", image_of(folder), folder)
    try:
        yield folder
    finally:
        _unmount(folder, may_be_open=may_be_open)


def image_of(disk: Path) -> Path:
    """Return the file that holds an ext4 file system."""
    return disk.with_suffix(".img")


def enlarge(disk: Path, size: str = "64m") -> None:
    """Give a tmpfs more room."""
    _run("mount", "-o", f"remount,size={size}", disk)


def make_read_only(disk: Path) -> None:
    """Let nothing be written any more."""
    _run("mount", "-o", "remount,ro", disk)


@functools.cache
def can_mount(disk: Disk) -> bool:
    """Return whether this process can mount such a file system: it tries."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with disk(Path(folder) / "disk", "4m"):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False
