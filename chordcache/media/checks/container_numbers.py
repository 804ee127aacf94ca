"""Comparison of the numbers that a container has with its content, for each container."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, TypeAlias

from chordcache.media.checks.avi import loss_of_avi
from chordcache.media.checks.faults import Loss
from chordcache.media.checks.flv import loss_of_flv
from chordcache.media.checks.mp4 import loss_of_mp4
from chordcache.media.checks.ogg import loss_of_ogg
from chordcache.media.checks.transport_stream import loss_of_transport_stream
from chordcache.media.source_bytes import opened

Reader: TypeAlias = "Callable[[BinaryIO, int], Loss | None]"
"""Function of an open file and the number of its video track in the container. It reads headers and tables only."""

_READERS: dict[str, Reader] = {
    "avi": loss_of_avi,
    "flv": loss_of_flv,
    "mov,mp4,m4a,3gp,3g2,mj2": loss_of_mp4,
    "mpegts": loss_of_transport_stream,
    "ogg": loss_of_ogg,
}
"""Reader by libavformat's name of the format"""

PROVED = frozenset((*_READERS, "matroska,webm", "mpeg", "h264", "hevc", "av1", "obu"))
"""Formats whose own numbers are compared with the content: here, by ``truncation``, or in the headers of pictures.
FFmpeg's report is believed of all others."""


def first_loss(path: str, container: str, *, track: int) -> Loss | None:
    """Return the first loss that the numbers of a container reveal; None if they agree with its content.

    ``container`` is libavformat's name of the format, and ``track`` the number of the video track in the container.
    Raise ``MediaError``, ``io``, if the file cannot be read.
    """
    if container not in _READERS:
        return None
    with opened(path) as file:
        return _READERS[container](file, track)
