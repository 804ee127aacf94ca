"""One decoder for one video track: each picture with the packet that it came from, and what the decoder reports."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import av
import av.codec.context
import numpy as np

from chordcache.errors import MediaError
from chordcache.media.ffmpeg_log import LogMessage, first_serious

Tagged: TypeAlias = "list[tuple[Any, Any]]"
"""Pictures that came out of the decoder, each with the tag of its packet; the tag is None if no packet is known."""

_OPTIONS = {
    # Where a stream does not say by how much pictures are reordered, libavcodec guesses, and drops some; strict, it
    # assumes the most that can be
    "h264": {"strict": "strict"},
    # Else it passes over what it cannot read, and says so in a warning
    "hevc": {"err_detect": "explode"},
}
"""By decoder."""

_STUFFING = re.compile(r"slice end not reached but screenspace end \((\d+) left")
"""The MPEG-4 decoder has the whole picture, and does not know the bits behind it."""

_STUFFING_HEAD_BYTES = 8
"""Of what follows a picture before its stuffing: the end of its last byte, and a start code."""

_MAX_KEPT_BYTES = 64 << 20
"""Of the packets since the last keyframe that are kept to be decoded again."""

_FOREIGN_BYTES = bytes(range(0x41, 0x81))
"""What is put behind the last packet to see whether its decoder reads on."""


class VideoDecoder:
    """Decode packets one at a time.

    Parameters
    ----------
    context : av.CodecContext
        Of the track. It is configured here, unless it was in use before.
    said : callable
        Returns the list that FFmpeg's messages of this thread go to.
    motion_vectors : bool
        Ask for motion vectors, as side data of the pictures.
    checks_end : bool
        Whether ``finish`` finds out if the last packet was cut off: for containers that do not say how long it is.
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
        self._checks_end = checks_end and context.name == "hevc"
        self._keeps = self._checks_end or context.name == "mpeg4"
        self._kept: list[tuple[Any, Any]] = []
        """Packets since the last keyframe but one, with their tags"""
        self._last_key = 0
        """Place of the last keyframe among them"""
        self._conceals = True
        self._num_kept_bytes = 0
        self._out: set[int] = set()
        """Tags of the kept packets whose pictures came out already"""
        self._last_picture: tuple[Any, Any] | None = None
        self.problem: str | None = None
        """What is wrong with the last packet; None if nothing is"""
        self.is_cut_off = False
        """Whether ``finish`` found that the last packet is not whole"""
        _configure(context, _OPTIONS.get(context.name, {}), motion_vectors)

    def flush(self) -> None:
        """Forget all packets, to begin elsewhere."""
        if self._context.is_open:
            self._context.flush_buffers()
        self._forget()

    def decode(self, packet: Any, tag: Any) -> Tagged:
        """Give the decoder a packet, and take the pictures that come; settles ``problem``.

        Parameters
        ----------
        packet : av.Packet
            Of the track.
        tag : object
            Comes back with the packet's picture.
        """
        if self._keeps:
            self._keep(packet, tag)
        num_said = len(self._said())
        pictures = self._pictures(self._context, packet, tag)
        if len(self._said()) > num_said and self._is_stuffed(packet, num_said):
            self.problem = None
            if self._conceals:
                pictures = self._without_concealment()
        self._note(pictures)
        return pictures

    def finish(self) -> Tagged:
        """Take the pictures that are still to come; settles ``problem``."""
        pictures = self._pictures(self._context, None, None)
        self._note(pictures)
        if self._checks_end and self._kept and self.problem is None and not self._ends_whole():
            self.problem, self.is_cut_off = "the last packet is cut off", True
        return pictures

    def _pictures(self, context: Any, packet: Any, tag: Any) -> Tagged:
        """Decode with one of the contexts, and judge."""
        self.problem = None
        said = self._said()
        num_said = len(said)
        if not context.is_open:
            self._open(context)
        if packet is not None:
            packet.opaque = _Tag(tag)
        try:
            pictures = context.decode(packet)
        except MemoryError:
            raise
        except av.error.FFmpegError as error:
            if any("get_buffer() failed" in text for _, _, text in said[num_said:]):  # "invalid data" to H.264
                raise MemoryError("the decoder gets no memory for a picture") from None
            words = first_serious(said[num_said:])
            self.problem = f"the decoder refuses it: {error.strerror}" + (f" ({words})" if words else "")
            return []
        words = first_serious(said[num_said:])
        if words is not None:
            self.problem = words
        elif any(picture.is_corrupt for picture in pictures):
            self.problem = "its decoder marks a frame as damaged"
        return [(picture.opaque and picture.opaque.value, picture) for picture in pictures]

    def _open(self, context: Any) -> None:
        num_said = len(self._said())
        try:
            context.open()
        except MemoryError:
            raise
        except (av.error.FFmpegError, ValueError) as error:
            words = first_serious(self._said()[num_said:]) or str(error)
            raise MediaError("decode", "decode", f"its decoder cannot be opened: {words}") from None

    # Packets that are kept

    def _keep(self, packet: Any, tag: Any) -> None:
        if packet.is_keyframe:
            self._out.difference_update(tag for _, tag in self._kept[: self._last_key])
            self._num_kept_bytes -= sum(each.size for each, _ in self._kept[: self._last_key])
            del self._kept[: self._last_key]
            self._last_key = len(self._kept)
        self._kept.append((packet, tag))
        self._num_kept_bytes += packet.size
        if self._num_kept_bytes > _MAX_KEPT_BYTES:
            self._keeps = False
            self._forget()

    def _forget(self) -> None:
        self._kept, self._last_key, self._num_kept_bytes = [], 0, 0
        self._out, self._last_picture = set(), None

    def _note(self, pictures: Tagged) -> None:
        if self._kept:
            last_tag = self._kept[-1][1]
            self._out.update(tag for tag, _ in pictures)
            if self._checks_end:
                self._last_picture = next((each for each in pictures if each[0] == last_tag), self._last_picture)

    def _is_stuffed(self, packet: Any, num_said: int) -> bool:
        """Whether the decoder complains of nothing but stuffing behind a picture."""
        found = [_STUFFING.search(text) for _, _, text in self._said()[num_said:]]
        if not self._kept or len(found) != 1 or found[0] is None:
            return False
        stuffing = bytes(packet)[-(int(found[0][1]) // 8) :]
        return len(set(stuffing[_STUFFING_HEAD_BYTES:])) == 1

    def _without_concealment(self) -> Tagged:
        """Go on with a decoder that shows pictures as they are: concealment would spoil whole ones.

        It decodes again from the last keyframe but one on, since pictures after the last one may need what came before
        it; what came out already is left out.
        """
        self._context, self._conceals = self._spare({"ec": "0"}), False
        pictures: Tagged = []
        for packet, tag in self._kept:
            num_said = len(self._said())
            pictures += self._pictures(self._context, packet, tag)
            if self.problem and self._is_stuffed(packet, num_said):
                self.problem = None
        return [each for each in pictures if each[0] not in self._out]

    def _ends_whole(self) -> bool:
        """Whether the last picture is the same with other bytes behind it: its decoder came to its end before them.

        A decoder of HEVC that runs out of bits goes on with zeros, and says nothing.
        """
        packet, last_tag = self._kept[-1]
        data = bytes(packet) + _FOREIGN_BYTES
        longer: Any = av.Packet(len(data))
        longer.update(data)
        longer.pts, longer.dts, longer.time_base = packet.pts, packet.dts, packet.time_base
        spare = self._spare({})
        again: Tagged = []
        for each, tag in [*self._kept[:-1], (longer, last_tag), (None, None)]:
            again += self._pictures(spare, each, tag)
        self.problem = None
        picture = next((found for tag, found in again if tag == last_tag), None)
        if self._last_picture is None or picture is None:
            return self._last_picture is None and picture is None
        return _are_equal(picture, self._last_picture[1])

    def _spare(self, options: dict[str, str]) -> Any:
        """Another context for the same track."""
        old = self._context
        spare: Any = av.CodecContext.create(old.name, "r")
        spare.extradata = old.extradata
        spare.codec_tag = old.codec_tag
        for name in ("width", "height", "color_primaries", "color_trc", "colorspace", "color_range"):
            setattr(spare, name, getattr(old, name))
        _configure(spare, {**_OPTIONS.get(old.name, {}), **options}, self._motion_vectors)
        return spare


def _are_equal(a: Any, b: Any) -> bool:
    """Whether two pictures hold the same samples. What pads their rows may differ."""
    sample_bytes = (a.format.components[0].bits + 7) // 8
    for x, y in zip(a.planes, b.planes, strict=True):
        one, other = (np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size) for plane in (x, y))
        num_bytes = x.width * sample_bytes
        if not np.array_equal(one[:, :num_bytes], other[:, :num_bytes]):
            return False
    return True


class _Tag:
    """Carries a tag through the decoder. An object of its own for each packet: PyAV 18 finds them by their address."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _configure(context: Any, options: dict[str, str], motion_vectors: bool) -> None:
    if motion_vectors:
        context.flags2 |= av.codec.context.Flags2.export_mvs
    if context.is_open:
        return
    context.thread_count = 1
    context.flags |= av.codec.context.Flags.copy_opaque
    context.options = {**context.options, **options}
