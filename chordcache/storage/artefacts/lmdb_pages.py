"""The values of a sealed LMDB environment, found in its pages without liblmdb.

LMDB ends the process if a page of a tree is not as it expects. Here each number is compared with the size of the file
before it is used, and each page of the tree is visited at most once, so that no content of a file can do that.

All numbers are little-endian. A page begins with a header of 16 bytes::

    uint64  number of the page
    uint16  unused
    uint16  flags: 1 branch, 2 leaf, 4 value
    uint16  end of the list of nodes, which begins behind the header: uint16 offsets in the page
    uint16  begin of the nodes. For a page of a value, these four bytes are the number of pages that the value takes

and a node is::

    uint32  of a leaf: size of the value. Of a branch: lower half of the number of the page below
    uint16  of a leaf: 1 if the value has pages of its own, whose number, a uint64, stands in its place, else 0. Of a
            branch: upper part of the number of the page below
    uint16  size of the key
    key, value

Pages 0 and 1 say where the tree begins. That with the later transaction counts. Source: LMDB 0.9, ``mdb.c``, the
structures MDB_meta, MDB_page and MDB_node.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from chordcache.digests import digest_of_parts
from chordcache.storage.artefacts.artefact import runs

Read = Callable[[int, int], bytes]
"""Function of an offset and a size that returns exactly these bytes of the file, or raises"""

FOOTER = struct.Struct("<QQQ")
"""Digest of the tree's pages and their numbers, size of a page, count of the pages"""

HEADER_BYTES = 16
"""Size of the header of a page, also of the first page of a value"""

_RECORD_KEY_BYTES = 4
"""Size of the key of a record, which is its number, big-endian"""

_FIRST_LETTER = ord("A")
"""Least first byte of a key that is the name of an array. Numbers of records are below 2^30"""

_CHANGED = "the pages of its tree are not what was written"

_MAX_PAGES_OF_ROW, _MAX_OTHER_PAGES = 4, 1024
"""Most pages of a tree: a record may have a leaf of its own, and each commit leaves some pages unused"""

_MAX_PAGES, _MAX_TREE_BYTES = 1 << 21, 8 << 30
"""Most pages of a tree, and bytes: those of millions of records that have less than a page. A file of zeros takes no
space on a disk, and may claim any number"""

_MAX_KEPT_BYTES = 16 << 20
"""Size of the pages that are kept between the check of their digest and the walk [bytes]. Others are read again"""

_BLOCK_BYTES = 4 << 20
"""Size of neighboring pages that are read at once [bytes]"""

_MAX_NAMES = 100
"""Most keys that are not those of records. There are less than ten"""

_NODE_BYTES = 8
_PLACE_BYTES = 8
_BRANCH, _LEAF = 1, 2
_NO_ROOT = 2**64 - 1
_PAGE_SIZES = range(512, 65537)

_ENTRIES_AND_ROOT = (struct.Struct("<QQ"), 120)
_TRANSACTION = (struct.Struct("<Q"), 144)
"""Number of entries and page of the root, and number of the transaction: format, and offset in pages 0 and 1"""


@dataclass
class LmdbValues:
    """The place of each value of an environment."""

    numbers: np.ndarray
    """Keys of the records [shape=(n,), dtype=int64], ascending"""
    places: np.ndarray
    """Offset of each record in the file [shape=(n,), dtype=int64, bytes]"""
    sizes: np.ndarray
    """Size of each record [shape=(n,), dtype=int64, bytes]"""
    named: Mapping[str, tuple[int, int]]
    """Offset and size of each other value [bytes]"""


def find_values(read: Read, num_bytes: int, max_rows: int | None = None) -> LmdbValues:
    """Walk the tree of an environment. ``num_bytes`` is the size of the file with its footer.

    ``max_rows``, the largest number of records, bounds the pages that are read. Raises ``ValueError`` if a page is not
    what was written, or names something that cannot be.
    """
    digest, page_bytes, num_pages = FOOTER.unpack(read(num_bytes - FOOTER.size, FOOTER.size))
    if page_bytes not in _PAGE_SIZES or not 2 <= num_pages <= num_bytes // page_bytes:
        raise ValueError(_CHANGED)
    if max_rows is not None and num_pages > _MAX_OTHER_PAGES + _MAX_PAGES_OF_ROW * max_rows:
        raise ValueError(f"its tree has {num_pages} pages, for {max_rows} records")
    if num_pages > _MAX_PAGES or num_pages * page_bytes > _MAX_TREE_BYTES:
        raise ValueError(f"its tree has {num_pages} pages of {page_bytes} bytes, which is more than is read")
    end = num_bytes - FOOTER.size - 8 * num_pages
    listed = read(end, 8 * num_pages)
    page_numbers = np.frombuffer(listed, "<u8")
    if int(page_numbers.max()) >= end // page_bytes or (page_numbers[1:] <= page_numbers[:-1]).any():
        raise ValueError(_CHANGED)
    checked = digest_of_parts()
    pages: dict[int, memoryview | None] = {}
    step = _BLOCK_BYTES // page_bytes
    for run in runs(page_numbers.tolist()):
        for start in range(run.start, run.stop, step):
            numbers = range(start, min(start + step, run.stop))
            block = memoryview(read(start * page_bytes, len(numbers) * page_bytes))
            checked.update(block)
            is_kept = len(pages) * page_bytes < _MAX_KEPT_BYTES
            places = range(0, len(block), page_bytes)
            pages |= {n: block[i : i + page_bytes] if is_kept else None for n, i in zip(numbers, places, strict=True)}
    checked.update(listed)
    if checked.intdigest() != digest:
        raise ValueError(_CHANGED)
    return _walk(read, pages, page_bytes, end)


def _walk(read: Read, pages: dict[int, memoryview | None], page_bytes: int, end: int) -> LmdbValues:
    """Visit the pages of the tree from its root; take them from ``pages``, and read those that were not kept."""

    def taken(number: int) -> memoryview:
        if number not in pages:
            raise ValueError(f"page {number} is not one of its tree, or comes twice")
        return pages.pop(number) or memoryview(read(number * page_bytes, page_bytes))

    heads = [taken(0), taken(1)]
    newest = max(heads, key=lambda head: _TRANSACTION[0].unpack_from(head, _TRANSACTION[1]))
    num_entries, root = _ENTRIES_AND_ROOT[0].unpack_from(newest, _ENTRIES_AND_ROOT[1])
    leaves = _Leaves(page_bytes, end, num_entries)
    ahead = [] if root == _NO_ROOT else [root]
    while ahead:
        number = ahead.pop()
        page = taken(number)
        flags, list_end = struct.unpack_from("<HH", page, 10)
        nodes = np.frombuffer(page, "<u2", max(0, list_end - HEADER_BYTES) // 2, HEADER_BYTES)
        if flags & _BRANCH:
            below = (struct.unpack_from("<IH", page, node) for node in reversed(nodes.tolist()))
            ahead += [low | high << 32 for low, high in below]
            if len(ahead) > len(pages):
                raise ValueError(f"page {number} names pages twice")
        elif flags & _LEAF:
            leaves.add(page, nodes.astype(np.int64), number * page_bytes)
        else:
            raise ValueError(f"page {number} is neither a branch nor a leaf")
    return leaves.values()


class _Leaves:
    """The places that the leaves of a tree name."""

    def __init__(self, page_bytes: int, end: int, num_entries: int) -> None:
        self._page_bytes = page_bytes
        self._end = end
        """End of the pages in the file"""
        self._num_entries = num_entries
        self._num_nodes = 0
        self._numbers, self._places, self._sizes = ([np.empty(0, np.int64)] for _ in range(3))
        self._named: dict[str, tuple[int, int]] = {}

    def add(self, page: memoryview, nodes: np.ndarray, start: int) -> None:
        """Take the values of a leaf [shape=(n,), dtype=int64, offsets of its nodes], which begins at ``start``."""
        if not len(nodes):
            return
        self._num_nodes += len(nodes)
        if self._num_nodes > self._num_entries:  # before they take memory: nodes may lie over each other
            raise ValueError(f"got more than {self._num_entries} keys, expected as many")
        content = np.frombuffer(page, np.uint8)
        if int(nodes.max()) + _NODE_BYTES > len(content):
            raise ValueError("a node lies outside of its page")
        low, high, flags, key_bytes = content[nodes[:, None] + np.arange(_NODE_BYTES)].view("<u2").astype(np.int64).T
        sizes = low | high << 16
        if (flags & ~1).any():
            raise ValueError("a node has flags of another kind of database")
        if not key_bytes.all():
            raise ValueError("a key is empty")
        has_pages = flags == 1
        begins = nodes + _NODE_BYTES + key_bytes
        if int((begins + np.where(has_pages, _PLACE_BYTES, sizes)).max()) > len(content):
            raise ValueError("a value lies outside of its page")
        places = start + begins
        page_numbers = content[begins[has_pages][:, None] + np.arange(_PLACE_BYTES)].view("<u8")[:, 0]
        if (page_numbers > self._end // self._page_bytes).any():  # before it becomes an offset, which might overflow
            raise ValueError("the pages of a value lie outside of the file")
        places[has_pages] = page_numbers.astype(np.int64) * self._page_bytes + HEADER_BYTES
        if (places + sizes > self._end).any():
            raise ValueError("a value lies outside of the file")
        is_record = (key_bytes == _RECORD_KEY_BYTES) & (content[nodes + _NODE_BYTES] < _FIRST_LETTER)
        keys = nodes[is_record] + _NODE_BYTES
        self._numbers.append(content[keys[:, None] + np.arange(_RECORD_KEY_BYTES)].view(">u4")[:, 0].astype(np.int64))
        self._places.append(places[is_record])
        self._sizes.append(sizes[is_record])
        for i in np.flatnonzero(~is_record).tolist():
            key = bytes(page[nodes[i] + _NODE_BYTES : begins[i]]).decode("ascii", "replace")
            self._named[key] = (int(places[i]), int(sizes[i]))
        if len(self._named) > _MAX_NAMES:
            raise ValueError(f"got more than {_MAX_NAMES} keys of arrays")

    def values(self) -> LmdbValues:
        """Return all places. Raise ``ValueError`` if there are fewer or more than entries of the tree."""
        numbers, places, sizes = (np.concatenate(parts) for parts in (self._numbers, self._places, self._sizes))
        if len(numbers) + len(self._named) != self._num_entries or (numbers[1:] <= numbers[:-1]).any():
            raise ValueError(f"got keys out of order or twice, expected {self._num_entries} keys in ascending order")
        if sizes.sum() > self._end:
            raise ValueError("values lie over each other")
        return LmdbValues(numbers, places, sizes, self._named)
