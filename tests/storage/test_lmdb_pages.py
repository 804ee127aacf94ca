"""The pages of LMDB, read without liblmdb: against liblmdb, with forged pages, and cut short while they are read."""

from __future__ import annotations

import contextlib
import os
import random
import struct
from collections import Counter
from pathlib import Path

import lmdb
import numpy as np
import pytest

from chordcache.digests import digest64
from chordcache.errors import DamageError
from chordcache.storage.artefacts.lmdb_pages import find_values
from chordcache.storage.artefacts.lmdb_reader import LmdbArtefact
from chordcache.storage.artefacts.writer import create_artefact

NUMBERS = [
    0,
    1,
    2,
    4,
    16,
    24,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    4095,
    4096,
    4097,
    2**16,
    2**31,
    2**32 - 1,
    2**40,
    2**64 - 1,
]
"""Values that are put in place of others: limits of their types, and sizes of pages"""


def written(path: Path, sizes: list[int], *, gop: int = 1, seed: int = 0) -> list[bytes]:
    """Write an artefact of records of these sizes, and return the records."""
    rng = random.Random(seed)
    records = [rng.randbytes(size) for size in sizes]
    with create_artefact(path, gop=gop) as writer:
        if records:
            writer.append("frames", records)
        writer.finish({"pts_seconds": np.arange(len(records)) / 25}, {})
    return records


def test_records_that_are_one_record(tmp_path: Path) -> None:
    """A short file could have any number of large pictures."""
    path = tmp_path / "a.lmdb"
    sizes = [500_000, 5000, 5000]
    written(path, sizes)
    data = bytearray(path.read_bytes())
    first, *others = [
        data.index(struct.pack("<IHH", size, 1, 4) + number.to_bytes(4, "big")) for number, size in enumerate(sizes)
    ]
    for node in others:
        data[node : node + 4] = data[first : first + 4]
        data[node + 12 : node + 20] = data[first + 12 : first + 20]
    sealed = resealed(bytes(data))
    with pytest.raises(ValueError, match="values lie over each other"):
        find_values(lambda start, size: sealed[start : start + size], len(sealed))


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [100] * 3000,  # in the leaves
        [50_000] * 40,  # in pages of their own
        [n * 37 % 6000 for n in range(1, 700)],  # both
        [2_000_000, 3, 5_000_000],  # written in several transactions, which leave old pages behind
    ],
    ids=["none", "one", "leaves", "pages", "both", "transactions"],
)
def test_all_values_are_where_liblmdb_finds_them(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "a.lmdb"
    records = written(path, sizes)
    data = path.read_bytes()
    values = find_values(lambda start, size: data[start : start + size], len(data))
    entries = {
        int(n).to_bytes(4, "big"): data[at : at + size]
        for n, at, size in zip(values.numbers, values.places, values.sizes, strict=True)
    }
    entries |= {name.encode(): data[at : at + size] for name, (at, size) in values.named.items()}
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as environment, environment.begin() as reading:
        assert entries == dict(reading.cursor())
    artefact = LmdbArtefact(path, len(data))
    order = random.Random(1).choices(range(len(records)), k=50) if records else []
    for numbers in (range(len(records)), order):
        if artefact.streamed:
            assert [bytes(record) for record in artefact.records("frames", numbers)] == [records[n] for n in numbers]


def resealed(data: bytes) -> bytes:
    """Return an artefact whose seal is that of the pages that it has."""
    _, page_bytes, num_pages = struct.unpack("<QQQ", data[-24:])
    end = len(data) - 24 - 8 * num_pages
    listed = data[end : end + 8 * num_pages]
    pages = struct.unpack(f"<{num_pages}Q", listed)
    tree = b"".join(data[n * page_bytes : (n + 1) * page_bytes] for n in pages)
    return data[:end] + listed + struct.pack("<QQQ", digest64(tree + listed), page_bytes, num_pages)


def forged(data: bytes, rng: random.Random) -> bytes:
    """Change numbers in the pages of the tree, and seal them again."""
    _, page_bytes, num_pages = struct.unpack("<QQQ", data[-24:])
    end = len(data) - 24 - 8 * num_pages
    listed = data[end : end + 8 * num_pages]
    pages = struct.unpack(f"<{num_pages}Q", listed)
    changed = bytearray(data[:end])
    for _ in range(rng.choice([1, 1, 2, 5])):
        start = rng.choice(pages) * page_bytes
        at = start + rng.randrange(0, 200)
        (list_end,) = struct.unpack_from("<H", changed, start + 12)
        if rng.random() < 0.5 and 18 <= list_end <= page_bytes:
            (node,) = struct.unpack_from("<H", changed, start + 16 + 2 * rng.randrange((list_end - 16) // 2))
            at = start + min(page_bytes - 8, node + rng.choice([0, 2, 4, 6, 8, 12, 16]))
        width = rng.choice([1, 2, 4, 8])
        changed[at : at + width] = (rng.choice(NUMBERS) & (2 ** (8 * width) - 1)).to_bytes(width, "little")
    return resealed(bytes(changed) + data[end:])


def outcome(path: Path, records: list[bytes]) -> str:
    """Read all records and arrays, and return how that ended."""
    try:
        artefact = LmdbArtefact(path, path.stat().st_size)
    except DamageError:
        return "refused"
    is_whole = True
    for name in (*artefact.streamed, *artefact.whole):
        try:
            if name == "frames":
                for number, record in zip(
                    range(len(records)), artefact.records(name, range(len(records))), strict=True
                ):
                    assert bytes(record) == records[number]
            else:
                artefact.array(name)
        except DamageError:
            is_whole = False
    return "read" if is_whole else "damaged"


@pytest.mark.parametrize(("sizes", "gop"), [([3000, 200] * 200, 1), ([100] * 3000, 1), ([700] * 400, 12)])
def test_forged_pages_with_matching_seals_are_damage_or_read_right(tmp_path: Path, sizes: list[int], gop: int) -> None:
    path = tmp_path / "a.lmdb"
    records = written(path, sizes, gop=gop)
    data = path.read_bytes()
    rng = random.Random(gop)
    outcomes: Counter[str] = Counter()
    for _ in range(400):
        path.write_bytes(forged(data, rng))
        outcomes[outcome(path, records)] += 1
    assert min(outcomes["refused"], outcomes["read"]) > 20
    assert outcomes.total() == 400


def test_a_file_that_is_cut_while_it_is_open_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.lmdb"
    records = written(path, [5000, 300] * 60)
    data = path.read_bytes()
    for num_bytes in range(0, len(data) // 2, len(data) // 25):
        path.write_bytes(data)
        artefact = LmdbArtefact(path, len(data))
        os.truncate(path, num_bytes)
        num_read = 0
        for number, record in enumerate(records):
            with contextlib.suppress(DamageError):
                assert [bytes(read) for read in artefact.records("frames", [number])] == [record]
                num_read += 1
        assert num_read < len(records)
