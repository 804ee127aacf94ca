"""Videos whose frames are picture files: a folder of them, or the pictures of one name in a tar file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import BinaryIO

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
    from chordcache.media.picture_video import write_video

    write_video(zip(pictures, repeat(1)), PICTURES_PER_SECOND, file)
