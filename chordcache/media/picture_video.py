"""Pictures as the packets of a video."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from typing import Any, BinaryIO

import av

from chordcache import progress
from chordcache.errors import MediaError

_MARK = "picture files"
"""Comment of a video that was written here"""


def has_jpeg_files(container: Any) -> bool:
    """Return whether the packets of an open video are the JPEG files of a source."""
    (track, *others) = container.streams
    return not others and track.codec_context.name == "mjpeg" and container.metadata.get("comment") == _MARK


def write_video(codec: str, pictures: Iterator[tuple[bytes, int]], ticks_per_second: int, file: BinaryIO) -> None:
    """Write pictures to a file as the packets of a QuickTime video. Nothing is decoded.

    Parameters
    ----------
    codec : {"mjpeg", "png"}
    pictures : iterator of (bytes, int)
        Content and duration [ticks] of each.
    ticks_per_second : int
    file : file
        A file to write to, which can seek.

    Raises
    ------
    MediaError
        ``decode`` if the first picture cannot be read; ``truncated`` if one is empty.
    """
    try:
        first = next(pictures)
        width, height = _size(first[0])
        # without the version of FFmpeg in it, so that the copy of the same pictures has the same hash
        with av.open(file, "w", format="mov", container_options={"fflags": "+bitexact"}) as target:
            target.metadata["comment"] = _MARK
            track = target.add_mux_stream(codec, rate=ticks_per_second, width=width, height=height)
            time = 0
            for number, (picture, duration) in enumerate(chain([first], pictures), 1):
                if not picture:  # its packet would be left out without a message
                    raise MediaError("decode", "truncated", f"picture {number} is an empty file")
                packet = av.Packet(picture)
                packet.stream, packet.time_base = track, Fraction(1, ticks_per_second)
                packet.pts = packet.dts = time
                packet.duration, packet.is_keyframe = duration, True
                target.mux(packet)
                time += duration
                progress.beat()
    except av.error.FFmpegError as error:
        raise MediaError("decode", "decode", f"its pictures cannot be read: {error.strerror}") from None


def _size(picture: bytes) -> tuple[int, int]:
    """Return width and height of a picture."""
    with av.open(io.BytesIO(picture), options={"format_whitelist": "jpeg_pipe,png_pipe"}) as container:
        context = container.streams.video[0].codec_context
        return context.width, context.height
