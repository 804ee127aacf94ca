"""Videos whose frames are picture files: a folder of them, or the pictures of one name in a tar file.

PyAV is imported only to write them as the packets of a video.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import pairwise, repeat
from typing import Any, BinaryIO

from chordcache import progress
from chordcache.errors import MediaError, printable

PICTURES_PER_SECOND = 25
"""Frame rate of pictures, which have no times. It is that of FFmpeg's demuxer image2"""

_NAME = re.compile(r"(?P<prefix>.*?)(?P<number>\d{1,18})\.(?P<suffix>jpe?g|png)", re.IGNORECASE | re.DOTALL)
_CODECS = {"jpg": "mjpeg", "jpeg": "mjpeg", "png": "png"}
_MARK = "picture files"
"""Comment of a video that was written here"""

_FLOW = ("flow_x_", "flow_y_")
"""Prefixes of the pictures of flow that denseflow writes beside those of frames"""


def is_picture(name: str) -> bool:
    """Return whether a file name is that of a numbered picture.

    Examples
    --------
    >>> is_picture("img_00001.jpg"), is_picture("cover.jpg")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names of the numbered pictures among the files of a folder, in the order of their numbers.

    Raises ``MediaError``: ``not-regular`` if there are none, or two sets of them; ``short`` if one is missing.

    Examples
    --------
    >>> in_order(["img_10.jpg", "img_9.jpg", "flow_x_9.jpg", "facts.json"])
    ['img_9.jpg', 'img_10.jpg']
    """
    matches = [match for name in names if (match := _NAME.fullmatch(name)) and not name.startswith(_FLOW)]
    kinds = sorted({(match["prefix"], _CODECS[match["suffix"].lower()]) for match in matches})
    if not kinds:
        raise MediaError("open", "not-regular", "not a regular file, nor a folder of numbered pictures")
    if len(kinds) > 1:
        names_of_two = " and ".join(f"'{printable(prefix)}' ({codec})" for prefix, codec in kinds[:2])
        raise MediaError(
            "open", "not-regular", f"a folder with pictures of two kinds: {names_of_two}; keep one of them"
        )
    matches.sort(key=lambda match: int(match["number"]))
    steps = [int(later["number"]) - int(earlier["number"]) for earlier, later in pairwise(matches)]
    usual = min((step for step in steps if step), default=1)
    for step, (earlier, later) in zip(steps, pairwise(matches), strict=True):
        if step != usual:
            what = "have a gap between them" if step else "have the same number"
            message = f"the pictures '{printable(earlier[0])}' and '{printable(later[0])}' {what}"
            raise MediaError("open", "short", message)
    return [match[0] for match in matches]


def write_pictures(pictures: Iterator[bytes], file: BinaryIO) -> None:
    """Write a video of pictures without times. Raises as ``write_video``."""
    write_video(zip(pictures, repeat(1)), PICTURES_PER_SECOND, file)


def has_jpeg_files(container: Any) -> bool:
    """Return whether the packets of an open video are the JPEG files of a source."""
    (track, *others) = container.streams
    return not others and track.codec_context.name == "mjpeg" and container.metadata.get("comment") == _MARK


def write_video(pictures: Iterator[tuple[bytes, int]], ticks_per_second: int, file: BinaryIO) -> None:
    """Write pictures to a file, which can seek, as the packets of a QuickTime video. Nothing is decoded.

    ``pictures`` has the content and the duration [ticks] of each. All are JPEG, or all are PNG. Raise ``MediaError``:
    ``decode`` if the first picture cannot be read; ``truncated`` if one is empty.
    """
    import av

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
    import av

    with av.open(io.BytesIO(picture), options={"format_whitelist": "jpeg_pipe,png_pipe"}) as container:
        context = container.streams.video[0].codec_context
        return context.name, context.width, context.height
