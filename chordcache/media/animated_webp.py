"""Animated WebP, which FFmpeg 8.1 does not decode. OpenCV does.

Source: https://developers.google.com/speed/webp/docs/riff_container.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from chordcache.errors import MediaError

HEAD_BYTES = 30
"""Number of bytes of a file that ``is_animated_webp`` takes"""

_MAX_DECODED_BYTES = 1 << 30
"""[bytes] Largest size of all frames, which OpenCV decodes at once"""

_MILLISECONDS = 1000


def is_animated_webp(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is an animated WebP.

    Examples
    --------
    >>> is_animated_webp(b"RIFF....WEBPVP8 ")
    False
    """
    return head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and len(head) > 20 and bool(head[20] & 2)


def write_frames(data: bytes, file: BinaryIO) -> None:
    """Write the frames of an animated WebP as a video without loss, each with its duration.

    Raises ``MediaError``: ``truncated`` if the file is shorter than it states, ``decode`` if it is damaged, or
    ``refused-size`` if all frames together take more than 1 GiB.
    """
    num_frames = sum(kind == b"ANMF" for kind in _chunks(data))
    num_bytes = 4
    for start in (24, 27):
        num_bytes *= int.from_bytes(data[start : start + 3], "little") + 1
    if num_bytes * num_frames > _MAX_DECODED_BYTES:
        what = f"{num_frames} frames of {num_bytes} bytes, expected at most 1 GiB together in an animated WebP"
        raise MediaError("open", "refused-size", f"{what}; make it a video")
    import numpy as np

    from chordcache.media.opencv import cv2
    from chordcache.media.picture_video import write_video

    level = cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # raised below
    try:
        _, animation = cv2.imdecodeanimation(np.frombuffer(data, np.uint8))
    finally:
        cv2.utils.logging.setLogLevel(level)
    if len(animation.frames) != num_frames:
        what = f"{len(animation.frames)} of {num_frames} frames can be decoded"
        raise MediaError("decode", "decode", what)
    durations = np.asarray(animation.durations).ravel().tolist()
    pngs = (cv2.imencode(".png", frame, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes() for frame in animation.frames)
    write_video(zip(pngs, durations, strict=True), _MILLISECONDS, file)


def _chunks(data: bytes) -> Iterator[bytes]:
    """Yield the kind of each chunk."""
    (size,) = struct.unpack_from("<I", data, 4)
    start, end = 12, 8 + size
    while start + 8 <= end:
        kind, size = struct.unpack_from("<4sI", data, start) if start + 8 <= len(data) else (b"", len(data))
        start += 8 + size + size % 2
        if start > len(data) + size % 2:
            raise MediaError("decode", "truncated", "the file ends before its last frame")
        yield kind
