"""Videos whose frames are picture files: a folder of them, or the pictures of one name in a tar file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av

from chordcache import progress
from chordcache.errors import MediaError, printable

PICTURES_PER_SECOND = 25
"""Frame rate of pictures, which have no times. It is that of FFmpeg's demuxer image2"""

_NAME = re.compile(r"(?P<prefix>.*?)(?P<number>\d{1,18})\.(?P<suffix>jpe?g|png)", re.IGNORECASE | re.DOTALL)
_CODECS = {"jpg": "mjpeg", "jpeg": "mjpeg", "png": "png"}
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
        raise MediaError("open", "not-regular", "a folder without numbered pictures, expected a regular file")
    if len(kinds) > 1:
        names_of_two = " and ".join(f"'{printable(prefix)}' ({codec})" for prefix, codec in kinds[:2])
        raise MediaError("open", "not-regular", f"a folder with pictures of two kinds: {names_of_two}; keep one of them")
    matches.sort(key=lambda match: int(match["number"]))
    steps = [int(later["number"]) - int(earlier["number"]) for earlier, later in pairwise(matches)]
    for step, (earlier, later) in zip(steps, pairwise(matches), strict=True):
        if step != min(steps) or not step:
            what = "have the same number" if not step else "have a gap between them"
            message = f"the pictures '{printable(earlier[0])}' and '{printable(later[0])}' {what}"
            raise MediaError("open", "short", message)
    return [match[0] for match in matches]


def write_video(names: Sequence[str], pictures: Iterator[bytes], out: Any) -> None:
    """Write pictures to a file as the packets of a QuickTime video. Nothing is decoded.

    Parameters
    ----------
    names : sequence of str
        Name of each picture, as ``in_order`` returns them.
    pictures : iterator of bytes
        Content of each.
    out : file
        A file to write to, which can seek.

    Raises
    ------
    MediaError
        ``decode`` if the first picture cannot be read.
    """
    codec = _CODECS[names[0].rpartition(".")[2].lower()]
    try:
        first = next(pictures)
        width, height = _size(first)
        with av.open(out, "w", format="mov") as target:
            track = target.add_mux_stream(codec, rate=PICTURES_PER_SECOND, width=width, height=height)
            for number, picture in enumerate(_with_first(first, pictures)):
                packet = av.Packet(picture)
                packet.stream, packet.time_base = track, Fraction(1, PICTURES_PER_SECOND)
                packet.pts = packet.dts = number
                packet.duration, packet.is_keyframe = 1, True
                target.mux(packet)
                progress.beat()
    except av.error.FFmpegError as error:
        raise MediaError("decode", "decode", f"its pictures cannot be read: {error.strerror}") from None


def _size(picture: bytes) -> tuple[int, int]:
    """Return width and height of a picture."""
    with av.open(io.BytesIO(picture), options={"format_whitelist": "jpeg_pipe,png_pipe,apng"}) as container:
        context = container.streams.video[0].codec_context
        return context.width, context.height


def _with_first(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from others
