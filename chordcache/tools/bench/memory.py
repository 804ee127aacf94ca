"""Memory and CPU time of this process and of its workers, and files out of memory, as Linux reports them."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np


def processes() -> Iterator[int]:
    """Yield this process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue  # it ended meanwhile
        children.setdefault(parent, []).append(int(folder.name))
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += children.get(process, ())


def memory_bytes() -> int:
    """Return the memory of this process and its descendants [bytes]. Memory that they share counts once."""
    total = 0
    for process in processes():
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    if total:
        return total
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return 1024 * (own + children)


def cpu_seconds() -> float:
    """Return the CPU time so far of this process and of its running descendants [seconds]."""
    times = os.times()
    total = times.user + times.system
    ticks = os.sysconf("SC_CLK_TCK")
    for process in processes():
        if process == os.getpid():
            continue
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def drop_from_memory(files: Iterable[str]) -> None:
    """Ask the kernel to drop the pages of files. Pages that a process maps stay."""
    for name in files:
        file = os.open(name, os.O_RDONLY)
        try:
            os.fdatasync(file)  # pages that are not on the disk yet cannot be dropped
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def share_in_memory(files: Iterable[str]) -> float:
    """Return the share of the pages of files that are in memory [0 to 1]. It maps the files, and reads nothing.

    The kernel states it for files that the user may write. Others count as in memory.
    """
    num_pages = num_there = 0
    for name in files:
        with open(name, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                continue
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                pages = _pages_in_memory(mapped)
        num_pages += len(pages)
        num_there += int(np.count_nonzero(pages))
    return num_there / num_pages if num_pages else 0.0


def _pages_in_memory(mapped: mmap.mmap) -> np.ndarray:
    """Return whether each page is in memory [shape=(pages,), dtype=bool]."""
    pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    view = np.frombuffer(mapped, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(
        ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(mapped)), ctypes.c_void_p(pages.ctypes.data)
    ):
        raise OSError(ctypes.get_errno(), "mincore failed")
    return (pages & 1).astype(bool)
