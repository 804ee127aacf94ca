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


def loads(data: bytes) -> np.ndarray:
    """Return the array of a ``.npy`` file's bytes, read-only and without a copy.

    Raises ``ValueError`` if the header or the size is not as ``dumps`` writes it.
    """
    if len(data) < 10 or not data.startswith(_MAGIC):
        raise ValueError("not an npy file")
    offset = 10 + struct.unpack("<H", data[8:10])[0]
    match = _HEADER.fullmatch(data[10:offset])
    if match is None:
        raise ValueError("an npy header that was not written here")
    try:
        dtype = np.dtype(match[1].decode())
    except TypeError as error:
        raise ValueError(error) from None
    shape = tuple(int(part) for part in match[2].split(b",") if part.strip())
    if not 0 < len(shape) <= _MAX_AXES or math.prod(n or 1 for n in shape) * dtype.itemsize > _MAX_ARRAY_BYTES:
        raise ValueError(f"an array of impossible shape {shape}")
    if offset + math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of {dtype} {shape} in {len(data)} bytes")
    return np.ndarray(shape, dtype, data, offset)
