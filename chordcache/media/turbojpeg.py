"""Decoder of a part of a JPEG: libjpeg-turbo's own library, version 3, where one is installed.

The package simplejpeg links the same code, but not the function that sets the part.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import sys
import threading
from typing import Any

import numpy as np

from chordcache.media.cropping import Rectangle, check_pixels

_TJINIT_DECOMPRESS, _TJPARAM_JPEGWIDTH, _TJPARAM_JPEGHEIGHT, _TJPF_RGB = 1, 5, 6, 0
"""Constants of turbojpeg.h"""


class _Region(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_int), ("w", ctypes.c_int), ("h", ctypes.c_int))


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tj3Init": (ctypes.c_void_p, (ctypes.c_int,)),
    "tj3Destroy": (None, (ctypes.c_void_p,)),
    "tj3Get": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_int)),
    "tj3DecompressHeader": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)),
    "tj3SetCroppingRegion": (ctypes.c_int, (ctypes.c_void_p, _Region)),
    "tj3Decompress8": (
        ctypes.c_int,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    ),
}
"""Functions of the library: result and parameters"""


def candidates() -> list[str]:
    """Return the names under which the library may be installed, as dlopen takes them.

    In this order: the one of a conda environment, of the system, of libjpeg-turbo's own package, and of the wheel
    ``turbojpeg``, whose code is a preview of version 3.
    """
    module = importlib.util.find_spec("turbojpeg")  # in any folder of packages, such as that of the user
    folder = os.path.dirname(module.origin) if module is not None and module.origin else ""
    wheel = (
        sorted(glob.glob(os.path.join(glob.escape(folder), "turbojpeg.libs", "libturbojpeg*.so*"))) if folder else []
    )
    name = "libturbojpeg.so.0"
    return [os.path.join(sys.prefix, "lib", name), name, f"/opt/libjpeg-turbo/lib64/{name}", *wheel]


def load_library(names: list[str]) -> Any | None:
    """Return the first of the libraries that can decode a part of a JPEG, or None. Version 2 cannot."""
    for name in names:
        try:
            library = ctypes.CDLL(name)
            for function, (result, parameters) in _SIGNATURES.items():
                getattr(library, function).restype = result
                getattr(library, function).argtypes = parameters
        except (OSError, AttributeError):  # not installed, version 2
            continue
        return library
    return None


class PartDecoder:
    """A decoder of parts of JPEGs, by what ``load_library`` returned. Any thread may use it."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._of_thread = threading.local()

    def decode(self, data: Any, picture: tuple[int, int], region: Rectangle, out: np.ndarray) -> bool:
        """Decompress a part of a JPEG, a JFIF file, into ``out``. Return False if that is not possible.

        The JPEG must have the size ``picture`` (height, width), [pixels]. The first column of ``region`` must be the
        first of a block of chroma, which is a multiple of 16 for 4:2:0. Other columns at the border of the part are not
        those of the whole picture: their chroma is interpolated without the neighbor outside. ``out``
        [shape=(region.height, region.width, 3), dtype=uint8, 0 to 255, RGB] is C-contiguous, or ``UsageError`` is
        raised. It is undefined if the result is False.
        """
        check_pixels(out, region[2:])
        handle = getattr(self._of_thread, "handle", None)
        if handle is None:
            handle = self._of_thread.handle = _Handle(self._library)
        library, pointer = self._library, handle.pointer
        jpeg = np.frombuffer(data, np.uint8)
        address, out_address = jpeg.ctypes.data, out.ctypes.data
        return bool(
            library.tj3DecompressHeader(pointer, address, jpeg.size) == 0
            and library.tj3Get(pointer, _TJPARAM_JPEGHEIGHT) == picture[0]
            and library.tj3Get(pointer, _TJPARAM_JPEGWIDTH) == picture[1]
            and library.tj3SetCroppingRegion(pointer, _Region(region.left, region.top, region.width, region.height))
            == 0
            and library.tj3Decompress8(pointer, address, jpeg.size, out_address, out.strides[0], _TJPF_RGB) == 0
        )


class _Handle:
    """A decompressor of the library, which lives as long as its thread."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.pointer = library.tj3Init(_TJINIT_DECOMPRESS)
        if not self.pointer:
            raise MemoryError("libturbojpeg: got no decompressor, expected enough memory for one")

    def __del__(self) -> None:
        self._library.tj3Destroy(self.pointer)
