"""When each frame of a video is shown, and from which packet on it can be decoded: what exact random access needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from chordcache.decode import Media
from chordcache.errors import MediaError

_NAL_CODECS = {"h264": (0x1F, 0, range(1, 6), range(5, 6)), "hevc": (0x3F, 1, range(32), range(16, 22))}
"""Codec: mask and shift of a unit's type, the types that hold a picture, and those after which nothing older is used
by what is shown later: IDR in H.264, IRAP in HEVC (ITU-T H.264, table 7-1; H.265, table 7-1)."""

_CLEAN_KEY_CODECS = frozenset("vp8 vp9 av1 mpeg1video mpeg2video mpeg4 mjpeg prores dnxhd ffv1".split())
"""Codecs whose keyframes start afresh for all that is shown after them, and whose containers do not mislabel them."""

_HEAD_BYTES = 1 << 16
"""Of a packet, looked at for its first picture; parameter sets and messages come before it."""


@dataclass(frozen=True)
class Timeline:
    """The frames of a video in the order in which they are shown."""

    pts: np.ndarray
    """[shape=(T,), dtype=int64, ticks] ascending"""
    time_base: Fraction
    """[seconds] of one tick"""
    entries: np.ndarray
    """[shape=(T,), dtype=int64] the frame that decoding has to begin at, so that this one comes out right; -1 for the
    start of the file, which may lie before the first frame that is shown"""
    frame_seconds: Fraction
    """[seconds] that the last frame lasts, as the headers have it"""

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def pts_seconds(self) -> np.ndarray:
        """Presentation times [shape=(T,), dtype=float64, seconds]."""
        return self.pts * self.time_base.numerator / self.time_base.denominator

    @property
    def fps(self) -> float:
        """Frames per second on average: for one frame, that of the headers."""
        span = int(self.pts[-1] - self.pts[0]) * self.time_base if len(self) > 1 else 0
        return float((len(self) - 1) / span if span > 0 else 1 / self.frame_seconds)

    def find(self, pts: int | None) -> int | None:
        """The frame that is shown at a time [ticks], None if there is none."""
        if pts is None:
            return None
        frame = int(np.searchsorted(self.pts, pts))
        return frame if frame < len(self) and self.pts[frame] == pts else None


def entry_frames(pts: ArrayLike, keys: ArrayLike) -> np.ndarray:
    """For each frame, where decoding has to begin.

    Parameters
    ----------
    pts : array_like of int
        Of all frames, ascending.
    keys : array_like of int
        Presentation times of the keyframes that start afresh, in decode order. One counts only for frames that are
        shown at its time or later: those shown before it, although stored after it, may need what is older.

    Returns
    -------
    np.ndarray [shape=(T,), dtype=int64]

    Examples
    --------
    >>> entry_frames([0, 1, 2, 3, 4, 5], [1, 4]).tolist()
    [-1, 1, 1, 1, 4, 4]
    """
    times = np.asarray(pts, np.int64)
    starts = np.full(len(times), -1, np.int64)
    frames = np.searchsorted(times, np.asarray(keys, np.int64))
    starts[frames] = frames
    return np.maximum.accumulate(starts)


def read_timeline(media: Media) -> Timeline:
    """Demux a file from where it stands to its end, without decoding.

    Raises
    ------
    MediaError
        ``clock`` if frames cannot be told apart by their time; otherwise as ``Media.packets``.
    """
    video = media.require_video()
    codec = video.codec_context
    reader = packet_reader(codec.codec.canonical_name, codec.extradata or b"", codec.pix_fmt or "")
    shown: list[int] = []
    keys: list[int] = []
    for packet in media.packets():
        if not packet.size or packet.is_discard:
            continue
        if media.clock != "pts" or packet.pts is None:
            raise MediaError("open", "clock", "its packets carry no presentation times")
        data = memoryview(packet)
        if reader.is_hidden(data):
            continue
        shown.append(packet.pts)
        if packet.is_keyframe and reader.is_entry(data):
            keys.append(packet.pts)
    # The second field of a picture has the time of the first
    pts = sorted(set(shown))
    if not pts:
        raise MediaError("open", "clock", "it has no frame to show")
    if any(later < earlier for earlier, later in pairwise(keys)):
        raise MediaError("open", "clock", "its clock is set back on the way")
    return Timeline(
        np.array(pts, np.int64), video.time_base or Fraction(1), entry_frames(pts, keys), media.frame_seconds
    )


class PacketReader:
    """Tells packets that decoding can begin at from those that are only called keyframes, and those that show nothing.

    Parameters
    ----------
    codec : str
        libavcodec's name of it.
    nal_length_bytes : int
        Of the length before each unit, 0 for start codes. Of H.264 and HEVC only.
    """

    def __init__(self, codec: str, nal_length_bytes: int = 0) -> None:
        self._codec = codec
        self._length_bytes = nal_length_bytes

    def is_entry(self, packet: memoryview) -> bool:
        """Whether all that is shown from this keyframe's packet on comes out as if decoded from the start."""
        if self._codec not in _NAL_CODECS:
            return self._codec in _CLEAN_KEY_CODECS
        mask, shift, pictures, clean = _NAL_CODECS[self._codec]
        for header in self._unit_headers(packet[:_HEAD_BYTES]):
            kind = header >> shift & mask
            if kind in pictures:
                return kind in clean
        return False

    def is_hidden(self, packet: memoryview) -> bool:
        """Whether a packet of VP8 or VP9 holds one frame that is only referred to.

        Notes
        -----
        Source: RFC 6386, 9.1; VP9 bitstream specification, 6.2 and annex B (the last byte marks a superframe).
        """
        if self._codec == "vp8":
            return not packet[0] >> 4 & 1
        if self._codec != "vp9" or packet[-1] >> 5 == 0b110:
            return False
        profile = packet[0] >> 5 & 1 | packet[0] >> 3 & 2
        at = 3 if profile < 3 else 2  # bit of show_existing_frame; then come the frame's type and show_frame
        return not packet[0] >> at & 1 and not packet[0] >> at - 2 & 1

    def _unit_headers(self, packet: memoryview) -> Iterator[int]:
        at = 0
        if self._length_bytes:
            while at + self._length_bytes < len(packet):
                yield packet[at + self._length_bytes]
                at += self._length_bytes + int.from_bytes(packet[at : at + self._length_bytes], "big")
            return
        data = bytes(packet)
        while 0 <= (at := data.find(b"\0\0\1", at)) < len(data) - 3:
            at += 3
            yield data[at]


def packet_reader(codec: str, extradata: bytes, pixel_format: str) -> PacketReader:
    """The reader for a track; ``extradata`` says how H.264 and HEVC packets are divided."""
    if codec == "h264" and pixel_format.startswith("yuv444"):
        return PacketReader("")  # old x264 made such streams wrongly, and says so only in the first packet
    length_at = {"h264": 4, "hevc": 21}.get(codec)
    if length_at is None or len(extradata) <= length_at or extradata[0] != 1:
        return PacketReader(codec)
    return PacketReader(codec, (extradata[length_at] & 3) + 1)
