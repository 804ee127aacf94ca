"""Comparison of the numbers that a container has with its content, for each container."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, TypeAlias

from chordcache.media.checks.asf import loss_of_asf
from chordcache.media.checks.avi import loss_of_avi
from chordcache.media.checks.faults import Loss
from chordcache.media.checks.fixed_frames import loss_of_dv, loss_of_y4m
from chordcache.media.checks.flv import loss_of_flv
from chordcache.media.checks.gif import loss_of_gif
from chordcache.media.checks.mp4 import loss_of_mp4
from chordcache.media.checks.mxf import loss_of_mxf
from chordcache.media.checks.ogg import loss_of_ogg
from chordcache.media.checks.transport_stream import loss_of_transport_stream
from chordcache.media.source_bytes import opened

Reader: TypeAlias = "Callable[[BinaryIO, int], Loss | None]"
"""Function of an open file and the number of its video track in the container. It reads headers and tables only."""

_READERS: dict[str, Reader] = {
    "asf": loss_of_asf,
    "avi": loss_of_avi,
    "dv": loss_of_dv,
    "flv": loss_of_flv,
    "gif": loss_of_gif,
    "mov,mp4,m4a,3gp,3g2,mj2": loss_of_mp4,
    "mpegts": loss_of_transport_stream,
    "mxf": loss_of_mxf,
    "ogg": loss_of_ogg,
    "yuv4mpegpipe": loss_of_y4m,
}
"""Reader by libavformat's name of the format"""


def first_loss(path: str, container: str, *, track: int) -> Loss | None:
    """Return the first loss that the numbers of a container reveal; None if they agree with its content.

    ``container`` is libavformat's name of the format, and ``track`` the number of the video track in the container.
    Raise ``MediaError``, ``io``, if the file cannot be read.
    """
    if container not in _READERS:
        return None
    with opened(path) as file:
        return _READERS[container](file, track)
