"""Files of a folder that fills itself from a bucket, of which only the ranges that were read are there.

Such a file has the size of the artefact and no content at first. Behind its end stands a byte for each block of the
artefact: 1 when the content of the block is there, else 0. The content is on the disk before its byte is written, so a
byte of 1 is true also after a loss of power. The file has a folder of its own, ``ranges``, since it is not complete.
Its readers compare each record, row and array with its digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from chordcache.storage.artefacts.tiers import tier_of
from chordcache.storage.feature_info import FeatureInfo
from chordcache.storage.remote.messages import Span

FOLDER = "ranges"

LEAST_BYTES = 1 << 20
"""Size of the smallest artefact of which ranges are fetched [bytes]. A smaller one takes less time as a whole"""

_BLOCK_BYTES = 1 << 10

_GAP_BLOCKS = 8
"""Largest number of blocks between two ranges that are fetched as one. A request takes the time of many more"""


def has_ranges(info: FeatureInfo) -> bool:
    """Return whether the file of a feature is fetched by ranges."""
    return info.num_bytes >= LEAST_BYTES and tier_of(Path(str(info.file))).is_flat


def file_of(file: str) -> str:
    """Return the name of the file with the ranges of an artefact, both relative to the cache."""
    return f"{FOLDER}/{file.partition('/')[2]}"


def size_of(num_bytes: int) -> int:
    """Return the size of the file with the ranges of an artefact of ``num_bytes`` [bytes]."""
    return num_bytes + -(-num_bytes // _BLOCK_BYTES)


def missing(fd: int, num_bytes: int, spans: Iterable[Span]) -> list[Span]:
    """Return the ranges that have to be fetched so that these are there. They begin and end with a block."""
    runs = [(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES)) for start, stop in spans if start < stop]
    states = [os.pread(fd, stop - first, num_bytes + first) for first, stop in runs]
    if all(state.count(1) == stop - first for state, (first, stop) in zip(states, runs, strict=True)):
        return []
    blocks = (
        first + np.flatnonzero(np.frombuffer(s, np.uint8) != 1) for s, (first, _) in zip(states, runs, strict=True)
    )
    wanted = np.unique(np.concatenate(list(blocks)))
    ends = np.flatnonzero(np.diff(wanted) > 1 + _GAP_BLOCKS)
    firsts, lasts = wanted[[0, *(ends + 1)]], wanted[[*ends, -1]]
    return [
        (first * _BLOCK_BYTES, min((last + 1) * _BLOCK_BYTES, num_bytes))
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]


def note_arrival(fd: int, num_bytes: int, span: Span) -> None:
    """Note that the content of a range that ``missing`` returned is in the file, and on its disk."""
    first, stop = span[0] // _BLOCK_BYTES, -(-span[1] // _BLOCK_BYTES)
    os.pwrite(fd, b"\1" * (stop - first), num_bytes + first)
