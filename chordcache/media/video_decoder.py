"""Decoder for one video track: returns each picture with the packet that it came from, and reports errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import av
import numpy as np
from av.codec.context import Flags, Flags2

from chordcache.errors import MediaError
from chordcache.media.ffmpeg_log import LogMessage, first_serious, reason_of
from chordcache.media.picture_data import plane_array

Tagged: TypeAlias = "list[tuple[Any, Any]]"
"""Pictures that came out of the decoder, each with the tag of its packet. The tag is None if no packet is known."""

_OPTIONS = {
    # If a stream does not state its reorder depth, libavcodec guesses it and drops some pictures. With strict, it uses
    # the largest possible depth
    "h264": {"strict": "strict"},
    # By default, it skips what it cannot read, and reports this only as a warning
    "hevc": {"err_detect": "explode"},
}
"""Options by name of the decoder"""

_KEEPERS = ("vp7", "vp8")
"""Decoders that keep a part of what came before a keyframe (FFmpeg 8.1). If a packet after it is missing, the pictures
would depend on where a reader begins"""

_COLORS = ("colorspace", "color_primaries", "color_trc")

UNSTATED = 2
"""Code point of ITU-T H.273 for colors that are not stated"""

MARKED = "its decoder marks a frame as damaged"
"""Problem of a packet with which a frame came out that is marked. The frame may be that of an earlier packet"""

_GUESSED_ORDER = re.compile(rb"\x00\x00\x01[\x20-\x2f][\x00\x08\x80\x88][\x80-\xff]")
"""Header of an MPEG-4 layer of type 1 or 17. For these, libavcodec guesses that no B pictures follow. If some do, it
returns the picture before them twice. It guesses nothing for other types, which it decodes in the same way (8.1)."""

_MAX_KEPT_BYTES = 64 << 20
"""Largest total size of the packets that are kept to be decoded again. After a larger one, the end is not checked"""

_FOREIGN_BYTES = bytes(range(0x41, 0x81))
"""Bytes that are put behind the last packet, to see whether its decoder reads them"""


class VideoDecoder:
    """Decoder of packets, one at a time.

    ``context`` is that of the track. It is configured here, unless it is open already. ``said`` returns the list that
    gets FFmpeg's messages of this thread. With ``checks_end``, ``finish`` checks if the last packet of HEVC was cut
    off, for containers that do not state its length.
    """

    def __init__(
        self,
        context: Any,
        said: Callable[[], list[LogMessage]],
        *,
        motion_vectors: bool = False,
        checks_end: bool = False,
    ) -> None:
        self._context = context
        self._said = said
        self._motion_vectors = motion_vectors
        self._checks_end = checks_end
        self._kept: list[tuple[Any, Any]] = []
        """Packets since the last keyframe but one, with their tags, if the end is checked"""
        self._last_key = 0
        """Position of the last keyframe in ``_kept``"""
        self._num_kept_bytes = 0
        self._last_picture: Any = None
        """Picture of the last packet, None if it has not come out"""
        claims = {name: getattr(context, name) for name in _COLORS}
        self._claims = {name: claim for name, claim in claims.items() if claim != UNSTATED}
        """Colors that the container states"""
        self.problem: str | None = None
        """Fault of the last packet; None if there is none"""
        self.is_cut_off = False
        """True if ``finish`` found that the last packet is cut off"""
        _configure(context, motion_vectors)

    def flush(self) -> None:
        """Forget all packets, to begin at another position."""
        if self._context.is_open:
            self._context.flush_buffers()
        self._kept, self._last_key, self._num_kept_bytes = [], 0, 0

    def decode(self, packet: Any, tag: Any) -> Tagged:
        """Decode a packet, return the pictures that come out, each with the tag of its packet, and set ``problem``."""
        if self._context.name == "mpeg4" and packet.is_keyframe:
            _end_guess(memoryview(packet))
        if self._checks_end:
            self._keep(packet, tag)
        if packet.is_keyframe and self._context.is_open and self._context.name in _KEEPERS:
            self._context = self._spare()
        pictures = self._pictures(self._context, packet, tag)
        if self._checks_end:
            self._keep_picture(pictures)
        return pictures

    def finish(self) -> Tagged:
        """Return the remaining pictures, and set ``problem``."""
        pictures = self._pictures(self._context, None, None)
        if self._checks_end and self._kept:
            self._keep_picture(pictures)
            if self.problem is None and not self._ends_whole():
                self.problem, self.is_cut_off = "the last packet is cut off", True
        return pictures

    def _pictures(self, context: Any, packet: Any, tag: Any) -> Tagged:
        """Decode with one of the contexts, and check for errors."""
        self.problem = None
        said = self._said()
        num_said = len(said)
        if not context.is_open:
            self._open(context)
        if packet is not None:
            packet.opaque = [tag]  # a list of its own: PyAV 18 finds these objects by their address
        try:
            pictures = context.decode(packet)
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            # H.264 reports "invalid data". It reports nothing else if it has no memory for a picture's motion vectors
            if any("get_buffer() failed" in text for _, _, text in said[num_said:]) or not _is_free(
                context.width * context.height // 2
            ):
                raise MemoryError("the decoder gets no memory for a picture") from None
            self.problem = f"the decoder refuses it: {reason_of(error, first_serious(said[num_said:]))}"
            return []
        if len(said) > num_said:
            self.problem = first_serious(said[num_said:])
        if self.problem is None and any(picture.is_corrupt for picture in pictures):
            self.problem = MARKED
        for picture in pictures if self._claims else ():
            self._complete(picture)
        return [(picture.opaque[0] if picture.opaque else None, picture) for picture in pictures]

    def _complete(self, picture: Any) -> None:
        """Give a picture the colors that its stream does not state, and the container does.

        Some decoders, such as that of HEVC, call them unstated, although they were given those of the container.
        """
        for name, claim in self._claims.items():
            if getattr(picture, name) == UNSTATED and not picture.format.is_rgb:
                setattr(picture, name, claim)

    def _open(self, context: Any) -> None:
        num_said = len(self._said())
        try:
            context.open()
        except MemoryError:
            raise
        except (av.error.FFmpegError, ValueError) as error:
            words = first_serious(self._said()[num_said:]) or str(error)
            raise MediaError("decode", "decode", f"its decoder cannot be opened: {words}") from None

    # The end of the stream

    def _keep(self, packet: Any, tag: Any) -> None:
        """Keep a packet. Forget those before the last keyframe but one."""
        self._last_picture = None
        if packet.is_keyframe:
            self._num_kept_bytes -= sum(kept.size for kept, _ in self._kept[: self._last_key])
            del self._kept[: self._last_key]
            self._last_key = len(self._kept)
        self._kept.append((packet, tag))
        self._num_kept_bytes += packet.size
        if self._num_kept_bytes > _MAX_KEPT_BYTES:
            self._checks_end, self._kept = False, []

    def _keep_picture(self, pictures: Tagged) -> None:
        """Keep the picture of the last packet, if it is among these."""
        of_last = (picture for tag, picture in pictures if tag == self._kept[-1][1])
        self._last_picture = next(of_last, self._last_picture)

    def _ends_whole(self) -> bool:
        """Return whether the last picture stays the same with other bytes behind its packet.

        If so, its decoder reached the end of the picture before those bytes. An HEVC decoder that runs out of bits
        continues with zeros, and reports nothing.
        """
        packet, last_tag = self._kept[-1]
        data = bytes(packet) + _FOREIGN_BYTES
        longer: Any = av.Packet(len(data))
        longer.update(data)
        longer.pts, longer.dts, longer.time_base = packet.pts, packet.dts, packet.time_base
        spare = self._spare()
        again: Tagged = []
        for following, tag in [*self._kept[:-1], (longer, last_tag), (None, None)]:
            again += self._pictures(spare, following, tag)
        self.problem = None
        picture = next((decoded for tag, decoded in again if tag == last_tag), None)
        if self._last_picture is None or picture is None:
            return self._last_picture is picture
        return _are_equal(picture, self._last_picture)

    def _spare(self) -> Any:
        """Return another context for the same track."""
        old = self._context
        spare = context_like(old)
        for name in (*_COLORS, "color_range"):
            setattr(spare, name, getattr(old, name))
        _configure(spare, self._motion_vectors)
        return spare


def context_like(context: Any) -> Any:
    """Return another context for the same track, without the colors that the container states."""
    other: Any = av.CodecContext.create(context.name, "r")
    other.extradata = context.extradata
    other.width, other.height = context.width, context.height
    with suppress(UnicodeDecodeError):  # PyAV 18 cannot read a tag of other bytes, which no decoder knows either
        other.codec_tag = context.codec_tag
    return other


def _are_equal(a: Any, b: Any) -> bool:
    """Return whether two pictures hold the same samples. The padding of their rows may differ."""
    dtype = "u1" if a.format.components[0].bits == 8 else "<u2"
    return all(
        np.array_equal(plane_array(one, dtype), plane_array(other, dtype))
        for one, other in zip(a.planes, b.planes, strict=True)
    )


def _configure(context: Any, motion_vectors: bool) -> None:
    if motion_vectors:
        context.flags2 |= Flags2.export_mvs
    if context.is_open:
        return
    if context.name == "mpeg4" and context.extradata:
        extradata = bytearray(context.extradata)
        _end_guess(memoryview(extradata))
        context.extradata = bytes(extradata)
    context.thread_count = 1
    context.flags |= Flags.copy_opaque
    context.options = {**context.options, **_OPTIONS.get(context.name, {})}


def _end_guess(data: memoryview) -> None:
    """Give the layers in MPEG-4 headers a type for which the decoder does not guess the order of pictures."""
    for header in _GUESSED_ORDER.finditer(data):
        data[header.end() - 2] |= 1


def _is_free(num_bytes: int) -> bool:
    try:
        bytearray(num_bytes)
    except MemoryError:
        return False
    return True
