"""Views of a decoder's output: planes of a picture, and side data, such as motion vectors."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType

_SIDE_DATA: Any = SideDataContainer
"""Side data class of PyAV, whose stubs do not know that it takes a picture"""

MOTION_VECTOR_CODECS = frozenset(
    "h264 mpeg1video mpeg2video mpeg4 h263 h263p wmv1 wmv2 flv1 msmpeg4v1 msmpeg4v2 msmpeg4v3".split()
)
"""Codecs whose motion vectors libavcodec exports"""

MOTION_VECTOR = np.dtype(
    {
        "names": ["source", "size", "position", "motion", "motion_scale"],
        "formats": ["<i4", "(2,)u1", "(2,)<i2", "(2,)<i4", "<u2"],
        "offsets": [0, 4, 10, 24, 32],
        "itemsize": 40,
    }
)
"""AVMotionVector of libavutil/motion_vector.h, without the fields that are not used. Pairs are (x, y): ``size`` is
(w, h), ``position`` is (dst_x, dst_y), the center. ``motion_scale`` is the same for all vectors of a picture."""


def plane_array(plane: Any, dtype: str = "u1") -> np.ndarray:
    """Return a plane as a view [shape=(H, W)], of 8-bit samples by default; rows may be padded."""
    samples = np.frombuffer(plane, dtype)
    return samples.reshape(-1, plane.line_size // samples.itemsize)[: plane.height, : plane.width]


def side_data(picture: av.VideoFrame, kind: SideDataType) -> Any:
    """Return the side data of one kind, None if there is none.

    Raise ``ValueError`` if the picture has side data of a kind newer than PyAV's enum; PyAV 18 cannot list it.
    """
    # Make a new list. PyAV's own list and its picture refer to each other. Pictures would stay in memory, and not be
    # reused, until the garbage collector runs. This takes 0.3 ms a picture at 720p
    return _SIDE_DATA(picture).get(kind)


def motion_vectors(picture: av.VideoFrame) -> np.ndarray | None:
    """Return the motion vectors that libavcodec exported with a picture [shape=(n,), n >= 1, dtype=MOTION_VECTOR].

    None if there are none, as for intra pictures, or if PyAV cannot list them.
    """
    try:
        vectors = side_data(picture, SideDataType.MOTION_VECTORS)
    except ValueError:
        return None
    if vectors is None or not len(vectors):
        return None
    return np.frombuffer(vectors, MOTION_VECTOR)
