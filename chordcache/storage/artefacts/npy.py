"""The npy format, read strictly: what ``np.save`` writes of a plain array of numbers in C order, and nothing else.

numpy's reader is not used. Its headers are Python literals, and a hostile header can make it raise any exception.
"""

from __future__ import annotations

import io
import math
import re
import struct
from typing import Any

import numpy as np

MAX_HEADER_BYTES = 4096
"""Limit on the size of a header [bytes]. A header of 32 axes needs less."""

_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<|](?:[biufc]\d\d?|S[1-9]\d{0,8}))', "
    rb"'fortran_order': False, 'shape': \(((?:\d{1,18}, ?)*\d{0,18})\), \} *\n"
)
_MAX_AXES = 32
_MAX_ARRAY_BYTES = 1 << 60


def header_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes that stand before the values."""
    buffer = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, description)
    return buffer.getvalue()


def dumps(values: np.ndarray) -> bytes:
    """Return an array as the bytes of a ``.npy`` file."""
    return header_of(values.shape, values.dtype) + values.tobytes()


def parse_header(start: bytes, num_bytes: int) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape and dtype, and the offset of the values, which fill the rest of the file.

    ``start`` has the first ``MAX_HEADER_BYTES`` of a file of ``num_bytes``, or the whole file if it is shorter. Raises
    ``ValueError`` if the header or the size is not as ``dumps`` writes it.
    """
    if len(start) < 10 or not start.startswith(_MAGIC):
        raise ValueError("not an npy file")
    offset = 10 + struct.unpack("<H", start[8:10])[0]
    match = _HEADER.fullmatch(start[10:offset])
    if match is None:
        raise ValueError("an npy header that was not written here")
    try:
        dtype = np.dtype(match[1].decode())
    except TypeError as error:
        raise ValueError(error) from None
    shape = tuple(int(part) for part in match[2].split(b",") if part.strip())
    if len(shape) > _MAX_AXES or math.prod(n or 1 for n in shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise ValueError(f"an array of impossible shape {shape}")
    if offset + math.prod(shape) * dtype.itemsize != num_bytes:
        raise ValueError(f"an array of {dtype} {shape} in {num_bytes} bytes")
    return shape, dtype, offset


def loads(data: bytes) -> np.ndarray:
    """Return the array of a ``.npy`` file's bytes, read-only and without a copy. Raises ``ValueError``."""
    shape, dtype, offset = parse_header(data[:MAX_HEADER_BYTES], len(data))
    if not math.prod(shape):
        values = np.empty(shape, dtype)
        values.setflags(write=False)
        return values
    return np.frombuffer(data, dtype, offset=offset).reshape(shape)
