"""Pictures as the packets of a video."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fractions import Fraction
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


def write_video(pictures: Iterator[tuple[bytes, int]], ticks_per_second: int, file: BinaryIO) -> None:
    """Write pictures to a file as the packets of a QuickTime video. Nothing is decoded.

    Parameters
    ----------
    pictures : iterator of (bytes, int)
        Content and duration [ticks] of each. All are JPEG, or all are PNG.
    ticks_per_second : int
    file : file
        A file to write to, which can seek.

    Raises
    ------
    MediaError
        ``decode`` if the first picture cannot be read; ``truncated`` if one is empty.
    """
    try:
        # without the version of FFmpeg in it, so that the copy of the same pictures has the same hash
        with av.open(file, "w", format="mov", container_options={"fflags": "+bitexact"}) as target:
            target.metadata["comment"] = _MARK
            time = 0
            for number, (picture, duration) in enumerate(pictures, 1):
                if not picture:  # its packet would be left out without a message
                    raise MediaError("decode", "truncated", f"picture {number} has no bytes")
                if number == 1:
                    codec, width, height = _facts(picture)
                    track = target.add_mux_stream(codec, rate=ticks_per_second, width=width, height=height)
                packet = av.Packet(picture)
                packet.stream, packet.time_base = track, Fraction(1, ticks_per_second)
                packet.pts = packet.dts = time
                packet.duration, packet.is_keyframe = duration, True
                target.mux(packet)
                time += duration
                progress.beat()
    except av.error.FFmpegError as error:
        raise MediaError("decode", "decode", f"its pictures cannot be read: {error.strerror}") from None


def _facts(picture: bytes) -> tuple[str, int, int]:
    """Return codec, width and height of a picture."""
    with av.open(io.BytesIO(picture), options={"format_whitelist": "jpeg_pipe,png_pipe"}) as container:
        context = container.streams.video[0].codec_context
        return context.name, context.width, context.height
