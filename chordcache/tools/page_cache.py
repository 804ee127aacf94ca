"""The part of a file that is in the page cache of the kernel, by ``mincore``."""

from __future__ import annotations

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)

_FAILED = ctypes.c_void_p(-1).value


def num_resident(fd: int, start: int, num_bytes: int) -> int:
    """Return how many of the bytes of an open file from ``start`` on are in memory, in whole pages.

    Since Linux 5.2 the kernel says so only to processes that own the file or may write to it, and calls all of it
    resident otherwise. Raises ``OSError``.
    """
    if not num_bytes:
        return 0
    page = mmap.PAGESIZE
    first = start // page * page
    length = start + num_bytes - first
    pages = ctypes.create_string_buffer(-(-length // page))
    place = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, first)
    if place == _FAILED:
        raise _error()
    try:
        if _libc.mincore(place, length, pages):
            raise _error()
    finally:
        _libc.munmap(place, length)
    in_pages = sum(byte & 1 for byte in pages.raw) * page
    return min(in_pages, num_bytes)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
