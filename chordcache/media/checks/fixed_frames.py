"""Files whose frames all have one size: Y4M and raw DV."""

from __future__ import annotations

import re
from typing import BinaryIO

from chordcache.media.checks.faults import Loss

_MAX_HEADER_BYTES = 1 << 12

_CHROMA = re.compile(r"(420|422|444|411|mono)(alpha)?(jpeg|mpeg2|paldv)?(?:p?(\d+))?", re.IGNORECASE)
"""Planes, and bits per sample"""

_CHROMA_STEPS = {"420": (2, 2), "422": (2, 1), "444": (1, 1), "411": (4, 1)}
"""Columns and rows of the picture for each sample of chroma"""

_DV_FRAME_BYTES = 120_000, 144_000
"""Bytes of a frame of 525 and 625 lines: 10 or 12 sequences of 150 blocks of 80 bytes. Professional kinds have a
multiple of that."""


def loss_of_y4m(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place of a Y4M where a frame should begin and does not. ``track`` is not needed.

    Notes
    -----
    Source: yuv4mpeg(5) of the MJPEG tools.
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    header = file.readline(_MAX_HEADER_BYTES)
    size = _picture_bytes(header.decode("latin-1").split())
    position = len(header)
    while size and position < num_bytes:
        file.seek(position)
        frame = file.readline(_MAX_HEADER_BYTES)
        if not frame.startswith(b"FRAME") and position + len(frame) < num_bytes:
            return Loss(f"got other data at byte {position}, expected a frame", max(0, position - size))
        position += len(frame) + size
        if position > num_bytes:
            return Loss("the file ends inside of a frame", cause="truncated")
    return None


def _picture_bytes(fields: list[str]) -> int:
    """Return the length of a picture from the fields of a header; 0 if it is unknown."""
    values = {field[0]: field[1:] for field in reversed(fields[1:]) if field[0] in "WHC"}
    chroma = _CHROMA.fullmatch(values.get("C", "420"))
    if chroma is None or not values.get("W", "").isdigit() or not values.get("H", "").isdigit():
        return 0
    width, height = int(values["W"]), int(values["H"])
    num_samples = width * height
    if chroma[1].lower() != "mono":
        columns, rows = _CHROMA_STEPS[chroma[1]]
        num_samples += 2 * -(-width // columns) * -(-height // rows)
    num_samples += width * height * bool(chroma[2])
    return num_samples * (1 if int(chroma[4] or 8) <= 8 else 2)


def loss_of_dv(file: BinaryIO, track: int) -> Loss | None:
    """Return the first place of raw DV where a frame should begin and does not. ``track`` is not needed.

    Notes
    -----
    Source: IEC 61834-2, 11.4 (identifiers of DIF blocks, DSF).
    """
    num_bytes = file.seek(0, 2)
    file.seek(0)
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\x1f\x07":
        return None
    size = _DV_FRAME_BYTES[head[3] >> 7]
    for position in range(size, num_bytes - 1, size):
        file.seek(position)
        block = file.read(2)
        # header block of the first sequence of the first channel or a later one
        if block[0] >> 5 or block[1] >> 4:
            return Loss(f"got other data at byte {position}, expected a frame", position - size)
    return Loss("the file ends inside of a frame", cause="truncated") if num_bytes % size else None
