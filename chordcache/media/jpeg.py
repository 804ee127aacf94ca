"""Conversion of planes to JPEG bytes, and of JPEG bytes to RGB in the caller's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg

from chordcache.errors import DamageError


def encode_planes(y: np.ndarray, u: np.ndarray, v: np.ndarray, *, quality: int) -> bytes:
    """Compress full-range BT.601 YUV planes without a conversion.

    Parameters
    ----------
    y, u, v : np.ndarray [shape=(H, W), (H/2, W/2), (H/2, W/2), dtype=uint8, 0 to 255]
        May be strided.
    quality : int
        1 to 100.

    Returns
    -------
    bytes
        A JFIF file.
    """
    data: bytes = simplejpeg.encode_jpeg_yuv_planes(*map(_packed_rows, (y, u, v)), quality=quality)
    return data


def _packed_rows(plane: np.ndarray) -> np.ndarray:
    """Return a plane whose pixels lie side by side; rows may be padded."""
    return plane if plane.strides[1] == 1 and plane.strides[0] > 0 else np.ascontiguousarray(plane)


def decode_into(data: Any, out: np.ndarray) -> None:
    """Decompress a JPEG directly into ``out``.

    Parameters
    ----------
    data : bytes-like
        A JFIF file.
    out : np.ndarray [shape=(H, W, 3), dtype=uint8, 0 to 255, RGB]
        Contiguous array that is filled.

    Raises
    ------
    DamageError
        If the data is not a JPEG, or has another size.
    """
    try:
        image = simplejpeg.decode_jpeg(data, "RGB", buffer=out)
    except ValueError as error:
        raise DamageError(f"not the expected JPEG: {error}") from None
    if image.shape != out.shape:
        raise DamageError(f"the JPEG is {image.shape[1]}x{image.shape[0]}, expected {out.shape[1]}x{out.shape[0]}")
