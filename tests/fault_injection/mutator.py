"""Mutants of files: most of them differ from a seed in the few bytes that say what the others mean."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

Edit = Callable[[random.Random, bytearray, int], None]

_REACH_BYTES = 40
"""Distance from a mark to the fields that it announces."""

_PAGE_BYTES = 4096

_BOXES = (
    b"ftyp moov mvhd trak tkhd edts elst mdia mdhd hdlr minf vmhd dinf dref stbl stsd avc1 avcC mp4v esds mp4a stts "
    b"ctts stss stsz stsc stco co64 sgpd sbgp mvex mehd trex moof mfhd traf tfhd tfdt trun mfra tfra mdat udta"
)
_MARKS = {
    ".mp4": b"....(?:" + b"|".join(_BOXES.split()) + b")",  # from the size on, which stands before the name
    ".mov": b"....(?:" + b"|".join(_BOXES.split()) + b")",
    ".mkv": rb"\x1aE\xdf\xa3|\x18S\x80g|\x11M\x9bt|\x15I\xa9f|\x16T\xaek|\x1cS\xbbk|\x1fC\xb6u|\x12T\xc3g|\xae|\xa3",
    ".avi": rb"RIFF|LIST|avih|strh|strf|idx1|indx|0[01](?:dc|db|wb)",
    ".ts": rb"G[\x00-\x5f].[\x10-\x3f]",
    ".ogv": rb"OggS|OVP80",
    ".flv": rb"FLV|\x00\x00\x00[\x08\x09\x12]|onMetaData",
    ".npz": rb'"(?:arrays|offset|shape|dtype|digest|xxh3_128)"',  # the table, of which alone readers know the rest
}
_MARKS[".webm"] = _MARKS[".mkv"]
_MARKS[".h5"] = _MARKS[".npz"]

_INTERESTING = (
    *(0, 1, 2, 3, 4, 7, 8, 15, 16, 100, 4095),
    *((1 << bits) - less for bits in (5, 6, 7, 8, 12, 15, 16, 24, 31, 32, 63, 64) for less in (0, 1)),
)


class Mutator:
    """Makes mutants of some seeds of one format.

    Parameters
    ----------
    suffix : str
        Of the format, such as ".mp4".
    seeds : sequence of bytes
        Sound files.
    """

    def __init__(self, suffix: str, seeds: Sequence[bytes]) -> None:
        self._seeds = seeds
        self._fields = [_fields(suffix, seed) for seed in seeds]

    def mutant(self, rng: random.Random, number: int, *, same_size: bool = False) -> bytes:
        """Return a mutant of seed ``number``; never the seed itself."""
        seed = self._seeds[number]
        data = bytearray(seed)
        while data == seed:
            if not same_size and rng.random() < 0.3:
                _resize(rng, data, self._seeds)
            for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
                if data:
                    _EDITS[rng.randrange(len(_EDITS))](rng, data, self._place(rng, number) % len(data))
        return bytes(data)

    def _place(self, rng: random.Random, number: int) -> int:
        """Choose the place of an edit: in four of five cases at a field."""
        fields = self._fields[number]
        if fields and rng.random() < 0.8:
            return rng.choice(fields) + rng.randrange(_REACH_BYTES)
        return rng.randrange(len(self._seeds[number]))


def _fields(suffix: str, seed: bytes) -> list[int]:
    if suffix == ".lmdb":  # every page begins with a header and the offsets of its nodes, which lie at its end
        return [place for page in range(0, len(seed), _PAGE_BYTES) for place in (page, *_nodes(seed, page))]
    return [match.start() for match in re.finditer(_MARKS[suffix], seed, re.DOTALL)]


def _nodes(seed: bytes, page: int) -> list[int]:
    """Where the nodes of a page of LMDB begin: 16 bytes of header, then an offset of two bytes for each."""
    is_tree = seed[page + 10] & 0b11 and not seed[page + 11]
    lower = int.from_bytes(seed[page + 12 : page + 14], "little")
    if not is_tree or not 16 <= lower <= _PAGE_BYTES:
        return []
    return [page + int.from_bytes(seed[at : at + 2], "little") for at in range(page + 16, page + lower, 2)]


def _flip(rng: random.Random, data: bytearray, at: int) -> None:
    data[at] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray, at: int) -> None:
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice(_INTERESTING) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, rng.choice(("little", "big")))[: len(data) - at]


def _add(rng: random.Random, data: bytearray, at: int) -> None:
    size, order = rng.choice((1, 2, 4)), rng.choice(("little", "big"))
    value = int.from_bytes(data[at : at + size], order) + rng.choice((-16, -2, -1, 1, 2, 16))
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, order)[: len(data) - at]


def _randomize(rng: random.Random, data: bytearray, at: int) -> None:
    size = min(len(data) - at, rng.choice((1, 2, 4, 16, 64)))
    data[at : at + size] = rng.randbytes(size)


def _copy(rng: random.Random, data: bytearray, at: int) -> None:
    size = min(len(data) - at, rng.choice((4, 8, 32, 188, 512, _PAGE_BYTES)))
    source = rng.randrange(len(data) - size + 1)
    data[at : at + size] = data[source : source + size]


_EDITS: tuple[Edit, ...] = (_flip, _flip, _set, _set, _add, _randomize, _copy)


def _resize(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Cut, delete, repeat, insert, or go on as another seed does."""
    start, stop = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    stop = min(stop, start + rng.choice((1, 4, 64, 512, len(data))))
    how = rng.randrange(5)
    if how == 0:
        del data[start:]
    elif how == 1:
        del data[start:stop]
    elif how == 2:
        data[start:start] = data[start:stop]
    elif how == 3:
        data[start:start] = rng.randbytes(rng.choice((1, 4, 64, 512)))
    else:
        data[start:] = rng.choice(seeds)[rng.randrange(len(data) + 1) :]
