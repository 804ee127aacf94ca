"""Stereo 3D: position of one eye's picture in the stored picture."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from chordcache.errors import MediaError

Region: TypeAlias = "tuple[int, int, int, int]"
"""(left, top, width, height) in stored pixels"""

_TWO_D, _SEQUENCE = 0, 3
_LAYOUTS = {1: "side_by_side", 2: "top_bottom"}
_OTHER_TYPES = {
    _SEQUENCE: "frames of the two eyes in turn",
    4: "checkerboard",
    5: "quincunx side by side",
    6: "lines in turn",
    7: "columns in turn",
    8: "unspecified",
}
"""Names of other layouts, by AVStereo3DType"""

_EYES = {1: "left", 2: "right"}
"""Eyes by AVStereo3DView. 0 is both."""

_INVERTED = 1
"""AV_STEREO3D_FLAG_INVERT: the right or lower half is the left eye's"""


@dataclass(frozen=True)
class View:
    """Half of the stored picture, or all of it."""

    layout: str | None = None
    """"side_by_side", "top_bottom" or None for the whole picture"""
    second: bool = False
    note: str | None = None

    def region(self, width: int, height: int) -> Region:
        """Return the region in a picture of this size. Offsets and lengths are even, to cut halved chroma exactly.

        Examples
        --------
        >>> View("side_by_side", second=True).region(1920, 1080)
        (960, 0, 960, 1080)
        >>> View("top_bottom", second=True).region(64, 50)
        (0, 26, 64, 24)
        """
        if self.layout == "side_by_side":
            start, length = self._half(width)
            return start, 0, length, height
        if self.layout == "top_bottom":
            start, length = self._half(height)
            return 0, start, width, length
        return 0, 0, width, height

    def _half(self, length: int) -> tuple[int, int]:
        half = 2 * (length // 4)
        if not half:
            raise MediaError("decode", "stereo", f"{length} pixels are too few to hold two eyes' pictures")
        return (2 * ((length - half) // 2) if self.second else 0), half


def view_of(eye: str, layout: str, stated: bytes | None, *, multiview: bool) -> View:
    """Choose the part to cut out for an eye, "left" or "right" in the stored picture, before it is rotated.

    The file's own statement ``stated`` has priority over ``layout``, which is "auto", "side_by_side" or "top_bottom",
    where the left eye's half is the left or upper one. Without either, the file counts as mono. ``stated`` is an
    ``AVStereo3D`` (libavutil/stereo3d.h), which begins with type, flags and view. ``multiview`` is True if the other
    eye has a layer of its own, which is not decoded (MV-HEVC).

    Raise ``MediaError``, ``stereo``, if this eye's picture is not available.
    """
    kind, flags, view = (None, 0, 0) if stated is None else struct.unpack_from("3i", stated)
    if multiview:
        return _base_view(eye, _EYES.get(view))
    if kind is None:
        return View() if layout == "auto" else _half_view(eye, layout, inverted=False)
    if kind == _TWO_D:
        return View()
    if kind in _LAYOUTS:
        return _half_view(eye, _LAYOUTS[kind], inverted=bool(flags & _INVERTED))
    what = f"no eye can be cut out of this stereo layout: {_OTHER_TYPES.get(kind, str(kind))}"
    raise MediaError("decode", "stereo", f"{what}; build it with 'frames.stereo: as_is'")


def _half_view(eye: str, layout: str, *, inverted: bool) -> View:
    note = f"{eye} eye cut out of {layout.replace('_', ' ')}"
    return View(layout, (eye == "right") != inverted, note)


def _base_view(eye: str, decoded_eye: str | None) -> View:
    if eye == decoded_eye:
        return View(note=f"{eye} eye: the base view of several")
    whose = f"{decoded_eye} eye's" if decoded_eye else "an unnamed eye's"
    what = f"the {eye} eye's picture is in a layer that is not decoded: the base view is {whose}"
    raise MediaError("decode", "stereo", f"{what}; build it with 'frames.stereo: as_is'")
