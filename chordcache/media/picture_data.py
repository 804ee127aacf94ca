"""Views of what a decoder made: planes of a picture, and data beside it."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType

_SIDE_DATA: Any = SideDataContainer
"""PyAV's stubs do not know that it takes a picture."""


def plane_array(plane: Any) -> np.ndarray:
    """A plane of 8-bit samples as a view [shape=(H, W), dtype=uint8]; rows may be padded."""
    return np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: plane.height, : plane.width]


def side_data(picture: av.VideoFrame, kind: SideDataType) -> Any:
    """Side data of one kind, None if there is none.

    Raises
    ------
    ValueError
        PyAV 18 cannot list the side data of a picture that has a kind newer than its enum.
    """
    # A list of its own: the one that PyAV keeps and its picture hold each other, so that pictures stay in memory, and
    # are not used again, until the garbage collector comes: 0.3 ms a picture at 720p
    return _SIDE_DATA(picture).get(kind)
